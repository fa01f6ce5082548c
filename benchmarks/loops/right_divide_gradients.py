def train(model, loader, optimizer, criterion, K):
    seen = 0
    for x, y in loader:
        criterion(model(x), y).backward()
        seen += 1
        if seen == K:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad /= K
            optimizer.step()
            optimizer.zero_grad()
            seen = 0
    if seen:
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= seen
        optimizer.step()
        optimizer.zero_grad()
