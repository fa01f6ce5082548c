def train(model, loader, optimizer, criterion, max_iter, accum):
    iterator = iter(loader)
    for it in range(max_iter * accum):
        try:
            x, y = next(iterator)
        except StopIteration:
            iterator = iter(loader)
            x, y = next(iterator)
        loss = criterion(model(x), y) / accum
        loss.backward()
        if (it + 1) % accum == 0:
            optimizer.step()
        optimizer.zero_grad()  # error: [zero-grad-every-batch]
