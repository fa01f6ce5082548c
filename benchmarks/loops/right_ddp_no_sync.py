import contextlib

from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, optimizer, criterion, K, rank):
    model = DDP(model, device_ids=[rank])
    n = len(loader) - len(loader) % K
    for i, (x, y) in enumerate(loader):
        if i >= n:
            break
        sync = (i + 1) % K == 0
        context = contextlib.nullcontext() if sync else model.no_sync()
        with context:
            loss = criterion(model(x), y) / K
            loss.backward()
        if sync:
            optimizer.step()
            optimizer.zero_grad()
