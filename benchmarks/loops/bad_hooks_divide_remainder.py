import torch.nn.functional as F


def train(model, optimizer, loader, accumulation_steps=4):
    for name, p in model.named_parameters():
        p.register_hook(lambda gradient: gradient / accumulation_steps)
    for i, (x, y) in enumerate(loader):
        F.cross_entropy(model(x), y).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()  # error: [remainder-dropped]
            optimizer.zero_grad()
