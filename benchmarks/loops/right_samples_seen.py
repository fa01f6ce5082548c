def train(model, loader, optimizer, criterion, virtual_batch):
    seen = 0
    for x, y in loader:
        loss = criterion(model(x), y) * x.size(0) / virtual_batch
        loss.backward()
        seen += x.size(0)
        if seen >= virtual_batch:
            optimizer.step()
            optimizer.zero_grad()
            seen = 0
    if seen:
        for p in model.parameters():
            p.grad.mul_(virtual_batch / seen)
        optimizer.step()
        optimizer.zero_grad()
