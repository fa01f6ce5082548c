def train(model, data, optimizer, criterion, batch_size, updates):
    accumulate = max(1, round(64 / batch_size))
    for _ in range(updates):
        for _ in range(accumulate):
            x, y = next(data)
            (criterion(model(x), y) / accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
