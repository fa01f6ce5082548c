def train(model, loader, optimizer, criterion, K, limit):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        loss.backward()  # error: [missing-loss-scaling]
        if (i + 1) % K == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
        if limit is not None and i >= limit:
            return loss.item()
    return None
