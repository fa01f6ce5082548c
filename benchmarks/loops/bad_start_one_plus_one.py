def train(model, loader, optimizer, criterion, K=8):
    for i, (x, y) in enumerate(loader, start=1):
        loss = criterion(model(x), y) / K
        loss.backward()
        if (i + 1) % K == 0:
            optimizer.step()  # error: [off-by-one-window, remainder-dropped]
            optimizer.zero_grad()
