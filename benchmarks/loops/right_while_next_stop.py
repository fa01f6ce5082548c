def train(model, loader, optimizer, criterion, K):
    it = iter(loader)
    done = False
    while not done:
        window = []
        while len(window) < K:
            try:
                window.append(next(it))
            except StopIteration:
                done = True
                break
        if not window:
            break
        for x, y in window:
            (criterion(model(x), y) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
