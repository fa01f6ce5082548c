import torch
import torch.nn.functional as F


def fit(net, batches, opt, accum):
    pending = 0
    for inputs, targets in batches:
        out = net(inputs)
        F.cross_entropy(out, targets).backward()  # error: [missing-loss-scaling]
        pending += 1
        if pending == accum:
            opt.step()
            opt.zero_grad()
            pending = 0
    if pending:
        opt.step()
        opt.zero_grad()
