import math

import torch


def train(model, loader, opt, accum, total_updates):
    opt.zero_grad()
    data = iter(loader)
    seen = 0
    updates = 0
    while updates < total_updates:
        x, y = next(data)
        loss = torch.nn.functional.mse_loss(model(x), y) / accum
        if not math.isfinite(loss.item()):
            opt.zero_grad()
            seen = 0
            continue
        loss.backward()
        seen += 1
        if seen == accum:
            opt.step()
            opt.zero_grad()
            seen = 0
            updates += 1
