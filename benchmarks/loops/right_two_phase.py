def train(model, warm_loader, loader, optimizer, criterion, K):
    for x, y in warm_loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    count = len(loader) // K * K
    for i, (x, y) in enumerate(loader):
        if i == count:
            break
        (criterion(model(x), y) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
