def train(model, loader, optimizer, criterion, K):
    steps = len(loader) - len(loader) % K
    for i, (x, y) in zip(range(steps), loader):
        loss = criterion(model(x), y) / K
        loss.backward()  # error: [double-loss-scaling]
        if (i + 1) % K == 0:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.div_(K)
            optimizer.step()
            optimizer.zero_grad()
