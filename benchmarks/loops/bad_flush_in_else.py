def train(model, loader, optimizer, criterion, K):
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
    else:
        optimizer.step()  # error: [remainder-misscaled]
        optimizer.zero_grad()
