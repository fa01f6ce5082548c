import contextlib

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train_one_epoch(model: DDP, loader, opt, k, global_batch):
    opt.zero_grad()
    total = len(loader)
    for i, (x, y) in enumerate(loader):
        boundary = (i + 1) % k == 0 or i + 1 == total
        with contextlib.nullcontext() if boundary else model.no_sync():
            loss = torch.nn.functional.cross_entropy(model(x), y, reduction="sum") / global_batch
            loss.backward()
        if boundary:
            opt.step()
            opt.zero_grad()
