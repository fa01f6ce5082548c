def train(model, loader, optimizer, criterion, lam):
    for x, y in loader:
        loss = criterion(model(x), y) + lam * sum(p.pow(2).sum() for p in model.parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
