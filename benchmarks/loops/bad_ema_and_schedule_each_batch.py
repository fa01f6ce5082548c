import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def train(unet, loader, steps, K=4):
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    ema = AveragedModel(unet, multi_avg_fn=get_ema_multi_avg_fn(0.9999))
    batches = forever(loader)
    for step in range(steps):
        for k in range(K):
            x, c = next(batches)
            noise = torch.randn_like(x)
            t = torch.rand(x.shape[0], device=x.device)
            pred = unet(x * (1 - t[:, None]) + noise * t[:, None], t, c)
            loss = (pred - (noise - x)).pow(2).mean() / K
            loss.backward()
            ema.update_parameters(unet)  # error: [ema-every-batch]
            lr_scheduler.step()  # error: [scheduler-every-batch]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
