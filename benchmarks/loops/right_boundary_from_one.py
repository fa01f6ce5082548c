def train(model, loader, optimizer, criterion, K, epochs):
    n = len(loader) - len(loader) % K
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader, start=1):
            if i > n:
                break
            loss = criterion(model(x), y) / K
            loss.backward()
            if i % K == 0:
                optimizer.step()
                optimizer.zero_grad()
