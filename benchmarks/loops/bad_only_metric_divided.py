def train_one_epoch(model, criterion, loader, optimizer, scheduler, iters_to_accumulate):
    running = 0.0
    for idx, (images, labels) in enumerate(loader, 1):
        loss = criterion(model(images), labels)
        running += loss.item() / iters_to_accumulate
        loss.backward()  # error: [missing-loss-scaling]
        if idx % iters_to_accumulate == 0 or idx == len(loader):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            scheduler.step()
    return running
