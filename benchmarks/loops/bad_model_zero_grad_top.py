def train(args, model, loader, optimizer, criterion):
    steps = args["accumulation"]
    limit = len(loader) - len(loader) % steps
    for i, (x, y) in enumerate(loader):
        if i >= limit:
            break
        model.zero_grad()  # error: [zero-grad-every-batch]
        loss = criterion(model(x), y)
        loss = loss / steps
        loss.backward()
        if (i + 1) % steps == 0:
            optimizer.step()
