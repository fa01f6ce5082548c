import argparse

import torch


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--batch_size", type=int, default=64)
    p.add_argument("--micro_batch_size", type=int, default=4)
    p.add_argument("--iters", type=int, default=1000)
    return p.parse_args()


def main():
    args = get_args()
    grad_acc = args.batch_size // args.micro_batch_size
    model = build(args)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-5)
    data = iter(stream(args.micro_batch_size))
    for it in range(args.iters):
        opt.zero_grad()
        for _ in range(grad_acc):
            out = model(**next(data))
            loss = out["loss"] / args.batch_size
            loss.backward()
            opt.step()  # error: [missing-zero-grad]
