import torch
from torch.cuda.amp import GradScaler, autocast


def train(model, loader, optimizer, criterion, K, max_norm=1.0):
    scaler = GradScaler()
    n = len(loader)
    for i, (x, y) in enumerate(loader):
        window = min(K, n - i // K * K)
        with autocast():
            loss = criterion(model(x), y) / window
        scaler.scale(loss).backward()
        if (i + 1) % K == 0 or i + 1 == n:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # error: [clip-without-unscale]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
