def train_with_flush(model, loader, optimizer, criterion, accumulation_steps):
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    if (i + 1) % accumulation_steps != 0:
        optimizer.step()  # error: [remainder-misscaled]
        optimizer.zero_grad()
