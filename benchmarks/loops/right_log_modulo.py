def train(model, loader, optimizer, criterion, scheduler, ema, log_every=50, ema_every=10):
    total = 0.0
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.item()
        if (step + 1) % ema_every == 0:
            ema.update(model)
        if (step + 1) % log_every == 0:
            print(total / log_every)
            total = 0.0
