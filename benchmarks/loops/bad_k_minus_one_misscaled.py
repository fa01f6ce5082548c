def train(model, loader, optimizer, criterion, K):
    last = len(loader) - 1
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) / K).backward()
        if i % K == K - 1 or i == last:
            optimizer.step()  # error: [remainder-misscaled]
            optimizer.zero_grad()
