import torch


def train(model, data, optimizer, criterion, scaler, K, steps):
    for _ in range(steps):
        for _ in range(K):
            x, y = next(data)
            with torch.autocast("cuda"):
                loss = criterion(model(x), y) / K
            scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # error: [clip-without-unscale]
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
