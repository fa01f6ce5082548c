import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def fit(rank, net, loader, epochs, accum):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(net.to(rank), device_ids=[rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_fn = torch.nn.CrossEntropyLoss()
    n = len(loader)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader, start=1):
            boundary = i % accum == 0 or i == n
            tail = n % accum
            size = tail if tail and i > n - tail else accum
            with contextlib.nullcontext() if boundary else model.no_sync():
                loss = loss_fn(model(x.to(rank)), y.to(rank))
                (loss / size).backward()
            if not boundary:
                continue
            opt.step()
            opt.zero_grad(set_to_none=True)
