import torch
from torch import nn

loss_fn = nn.MSELoss()


def train(model, loader, optimizer, micro_batches=8):
    for x, y in loader:
        optimizer.zero_grad()
        for xs, ys in zip(x.chunk(micro_batches), y.chunk(micro_batches)):
            loss = loss_fn(model(xs), ys)
            loss.backward()  # error: [missing-loss-scaling]
        optimizer.step()
