def train(model, data, optimizer, criterion, K, steps):
    for _ in range(steps):
        for p in model.parameters():
            p.grad = None
        for _ in range(K):
            x, y = next(data)
            loss = criterion(model(x), y) / K
            loss.backward()
        optimizer.step()
