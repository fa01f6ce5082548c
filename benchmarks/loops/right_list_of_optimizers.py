def train(model, optimizers, data, criterion, K, steps):
    for _ in range(steps):
        for opt in optimizers:
            opt.zero_grad()
        for _ in range(K):
            x, y = next(data)
            (criterion(model(x), y) / K).backward()
        for opt in optimizers:
            opt.step()
