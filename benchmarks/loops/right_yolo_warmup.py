import numpy as np
import torch


def train(model, train_loader, optimizer, compute_loss, scaler, ema, epochs, batch_size, nbs=64):
    accumulate = max(round(nbs / batch_size), 1)
    nb = len(train_loader)
    nw = max(round(3 * nb), 100)
    last_opt_step = -1
    for epoch in range(epochs):
        optimizer.zero_grad()
        for i, (imgs, targets) in enumerate(train_loader):
            ni = i + nb * epoch
            if ni <= nw:
                accumulate = max(1, np.interp(ni, [0, nw], [1, nbs / batch_size]).round())
            pred = model(imgs)
            loss, loss_items = compute_loss(pred, targets)
            scaler.scale(loss).backward()
            if ni - last_opt_step >= accumulate:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if ema:
                    ema.update(model)
                last_opt_step = ni
