import torch
from torch.nn.utils import clip_grad_norm_


def make_updater(model, optimizer, accumulate):
    count = 0

    def update(loss):
        nonlocal count
        (loss / accumulate).backward()
        count += 1
        if count % accumulate == 0:
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return update


def main(model, steps, batches):
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    update = make_updater(model, optimizer, 4)
    stream = iter(batches)
    for _ in range(steps):
        x, y = next(stream)
        update(torch.nn.functional.smooth_l1_loss(model(x), y))
