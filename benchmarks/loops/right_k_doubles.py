def train(model, data, optimizer, criterion, updates):
    k = 2
    for update in range(updates):
        if update == 3:
            k = 4
        for _ in range(k):
            x, y = next(data)
            (criterion(model(x), y) / k).backward()
        optimizer.step()
        optimizer.zero_grad()
