def train(model, data, optimizer, criterion, K, steps, batch_size):
    for _ in range(steps):
        for _ in range(K):
            x, y = next(data)
            loss = criterion(model(x), y)
            loss = loss / K
            loss = loss / K
            loss.backward()  # error: [double-loss-scaling]
        optimizer.step()
        optimizer.zero_grad()
