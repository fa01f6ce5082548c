from itertools import chain, islice, repeat

import torch


def train(model, loader, opt, k, updates):
    batches = chain.from_iterable(repeat(loader))
    for _ in range(updates):
        for x, y in islice(batches, k):
            (torch.nn.functional.mse_loss(model(x), y) / k).backward()
        opt.step()
        opt.zero_grad()
