import torch
import torch.nn.functional as F


def step_on(model, optimizer, micro_batches):
    for mb in micro_batches:
        loss = F.cross_entropy(model(mb["x"]), mb["y"])
        loss.backward()  # error: [missing-loss-scaling]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def train(model, loader, args):
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    pending = []
    for batch in loader:
        pending.append(batch)
        if len(pending) == args.accum:
            step_on(model, optimizer, pending)
            pending = []
    if pending:
        step_on(model, optimizer, pending)
