def train(model, data, optimizer, criterion, schedule, updates):
    for update in range(updates):
        k = schedule(update)
        for _ in range(k):
            x, y = next(data)
            criterion(model(x), y).backward()  # error: [missing-loss-scaling]
        optimizer.step()
        optimizer.zero_grad()
