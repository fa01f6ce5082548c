def train(model, loader, optimizer, criterion, K, warmup_epochs, epochs):
    for _ in range(warmup_epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    optimizer.zero_grad()
    for _ in range(epochs):
        whole = len(loader) - len(loader) % K
        for i, (x, y) in enumerate(loader):
            length = K if i < whole else len(loader) - whole
            loss = criterion(model(x), y) / length
            loss.backward()
            if (i + 1) % K == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
