def train(model, loader, optimizer, scaler, criterion, K, use_amp):
    for i, (x, y) in enumerate(loader):
        if i == len(loader) // K * K:
            break
        scaler.scale(criterion(model(x), y) / K).backward()
        if (i + 1) % K == 0:
            if use_amp:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
