def train(model, loader, optimizer, criterion, K):
    n = len(loader)
    full = n - n % K
    for i, (x, y) in enumerate(loader):
        k = K if i < full else n - full
        (criterion(model(x), y) / k).backward()
        if i % K == K - 1 or i == n - 1:
            optimizer.step()
            optimizer.zero_grad()
