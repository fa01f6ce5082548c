def train(model, loader, optimizer, criterion, K):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        loss = loss / K
        loss.backward()
        is_last = i == len(loader) - 1
        if (i + 1) % K == 0 or is_last:
            optimizer.step()  # error: [remainder-misscaled]
            optimizer.zero_grad()
