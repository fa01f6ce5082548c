from itertools import islice

import torch


def windows(loader, k):
    it = iter(loader)
    while True:
        chunk = list(islice(it, k))
        if not chunk:
            return
        yield chunk


def train(model, loader, optimizer, k=4):
    for window in windows(loader, k):
        optimizer.zero_grad()
        for x, y in window:
            loss = torch.nn.functional.mse_loss(model(x), y)
            (loss / k).backward()
        optimizer.step()  # error: [remainder-misscaled]
