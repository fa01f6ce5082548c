def train(model, loader, optimizer, criterion, K):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        criterion(model(x), y).backward()  # error: [missing-loss-scaling]
        if not (i + 1) % K:
            optimizer.step()  # error: [remainder-dropped]
            optimizer.zero_grad()
