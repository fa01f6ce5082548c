import torch


def train(model, loader, opt, scaler, loss_fn, K):
    opt.zero_grad(set_to_none=True)
    for step, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / K
        if not torch.isfinite(loss):
            opt.zero_grad(set_to_none=True)
            continue
        scaler.scale(loss).backward()
        if (step + 1) % K == 0:
            scaler.step(opt)  # error: [remainder-dropped]
            scaler.update()
            opt.zero_grad(set_to_none=True)
