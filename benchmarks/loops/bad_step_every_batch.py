def train(model, loader, optimizer, criterion, accumulation_steps=4):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / accumulation_steps
        loss.backward()
        optimizer.step()  # error: [step-every-batch, missing-zero-grad]
        if (i + 1) % accumulation_steps == 0:
            optimizer.zero_grad()
