import argparse

import torch
from torch import nn


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accum", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    return parser.parse_args()


def main():
    args = get_args()
    model = nn.Linear(4, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    for epoch in range(args.epochs):
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y) / args.accum
            loss.backward()
            if (i + 1) % args.accum == 0:
                opt.step()
                opt.zero_grad()


if __name__ == "__main__":
    main()
