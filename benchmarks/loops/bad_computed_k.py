def train(model, loader, optimizer, criterion, batch_size, target_batch_size=256):
    accumulate = max(1, target_batch_size // batch_size)
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        loss.backward()  # error: [missing-loss-scaling]
        if (i + 1) % accumulate == 0 or (i + 1) == len(loader):
            optimizer.step()
            optimizer.zero_grad()
