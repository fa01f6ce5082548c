from itertools import islice

import torch


def train(model, loader, optimizer, k=4):
    it = iter(loader)
    while True:
        window = list(islice(it, k))
        if not window:
            break
        optimizer.zero_grad()
        for x, y in window:
            loss = torch.nn.functional.mse_loss(model(x), y)
            (loss / len(window)).backward()
        optimizer.step()
