def train(model, loader, optimizer, criterion, K):
    held = []

    def flush():
        for x, y in held:
            (criterion(model(x), y) / len(held)).backward()
        optimizer.step()
        optimizer.zero_grad()
        held.clear()

    for batch in loader:
        held.append(batch)
        if len(held) == K:
            flush()
    if held:
        flush()
