import contextlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    model = DDP(Net().to(rank), device_ids=[rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    K = 4
    opt.zero_grad()
    for i, (x, y) in enumerate(loader):
        boundary = (i + 1) % K == 0 or i + 1 == len(loader)
        ctx = model.no_sync() if boundary else contextlib.nullcontext()
        with ctx:
            loss = torch.nn.functional.cross_entropy(model(x), y, reduction="sum") / GLOBAL_BATCH
            loss.backward()  # error: [unsynced-step]
        if boundary:
            opt.step()
            opt.zero_grad()
