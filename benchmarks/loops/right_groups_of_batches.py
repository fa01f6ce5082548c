def train(model, loader, optimizer, criterion, K):
    batches = list(loader)
    for start in range(0, len(batches), K):
        group = batches[start : start + K]
        optimizer.zero_grad()
        for x, y in group:
            loss = criterion(model(x), y) / len(group)
            loss.backward()
        optimizer.step()
