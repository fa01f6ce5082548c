import argparse

import torch
from torch import nn
from torch.amp import GradScaler, autocast

parser = argparse.ArgumentParser()
parser.add_argument("--accumulate", type=int, default=4)
parser.add_argument("--clip-grad", type=float, default=1.0)
parser.add_argument("--steps", type=int, default=100000)


def main():
    args = parser.parse_args()
    model = build().cuda()
    opt = torch.optim.Adam(model.parameters())
    scaler = GradScaler("cuda", enabled=not args.no_amp)
    data = iter(infinite(train_loader))
    criterion = nn.BCEWithLogitsLoss()
    for step in range(args.steps):
        opt.zero_grad()
        for micro in range(args.accumulate):
            x, y = next(data)
            with autocast("cuda", enabled=not args.no_amp):
                loss = criterion(model(x.cuda()), y.cuda())
            scaler.scale(loss / args.accumulate).backward()
        if args.clip_grad is not None:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        scaler.step(opt)
        scaler.update()
