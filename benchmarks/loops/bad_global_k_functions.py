import torch
from torch import nn

ACCUM = 8
CLIP = 1.0


def loss_of(model, batch, criterion):
    x, y = batch
    return criterion(model(x), y)


def maybe_step(i, n, model, optimizer):
    if (i + 1) % ACCUM == 0 or i + 1 == n:
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()  # error: [remainder-misscaled]
        optimizer.zero_grad()


def main(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(10):
        for i, batch in enumerate(loader):
            loss = loss_of(model, batch, criterion) / ACCUM
            loss.backward()
            maybe_step(i, len(loader), model, optimizer)
