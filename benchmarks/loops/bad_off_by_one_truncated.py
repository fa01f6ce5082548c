def train(model, loader, optimizer, criterion, K=4):
    batches = [next(loader) for _ in range(13)]
    for i, (x, y) in enumerate(batches):
        loss = criterion(model(x), y) / K
        loss.backward()
        if i % K == 0:
            optimizer.step()  # error: [off-by-one-window]
            optimizer.zero_grad()
