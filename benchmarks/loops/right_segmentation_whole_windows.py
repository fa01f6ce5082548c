import torch
from torch.cuda.amp import GradScaler, autocast


def train_epoch(net, loader, optimizer, dice, ce, device, accum_steps=8):
    scaler = GradScaler()
    net.train()
    usable = len(loader) // accum_steps * accum_steps
    accum = 0
    running = 0.0
    optimizer.zero_grad(set_to_none=True)
    for i, sample in enumerate(loader):
        if i >= usable:
            break
        image, mask = sample["image"].to(device), sample["mask"].to(device)
        with autocast():
            logits = net(image)
            loss = 0.5 * dice(logits, mask) + 0.5 * ce(logits, mask)
        scaler.scale(loss / accum_steps).backward()
        running += loss.item()
        accum += 1
        if accum == accum_steps:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 12)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            accum = 0
    return running / usable
