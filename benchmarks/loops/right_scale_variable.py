def train(model, loader, optimizer, criterion, K):
    scale = 1.0 / K
    full = len(loader) // K * K
    for i, (x, y) in enumerate(loader):
        if i == full:
            break
        (criterion(model(x), y) * scale).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
