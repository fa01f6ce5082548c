def train(model, loader, optimizer, summed_loss, K):
    tail = len(loader) % K
    for i, (x, y) in enumerate(loader):
        length = tail if i >= len(loader) - tail else K
        loss = summed_loss(model(x), y) / len(x) / length
        loss.backward()
        if (i + 1) % K == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
