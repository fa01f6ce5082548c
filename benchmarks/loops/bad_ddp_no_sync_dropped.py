from torch.nn.parallel import DistributedDataParallel


def train(model, loader, optimizer, criterion, K, epochs):
    ddp = DistributedDataParallel(model)
    for epoch in range(epochs):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            if (i + 1) % K != 0:
                with ddp.no_sync():
                    (criterion(ddp(x), y) / K).backward()
            else:
                (criterion(ddp(x), y) / K).backward()
                optimizer.step()  # error: [remainder-dropped]
                optimizer.zero_grad()
