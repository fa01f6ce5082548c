import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--accum", type=int, default=4)
args = parser.parse_args()

model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loss_fn = nn.CrossEntropyLoss()
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=4)
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y)
        loss.backward()  # error: [missing-loss-scaling]
        if (i + 1) % args.accum == 0:
            opt.step()
            opt.zero_grad()
