import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

total_iters = 20000
gradient_accumulation_steps = 16


def train(device, net, batches):
    model = DDP(net.to(device), device_ids=[device])
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(total_iters):
        accumulated_loss = 0.0
        for micro_step in range(gradient_accumulation_steps):
            idx, targets = next(batches)
            with torch.autocast("cuda", dtype=torch.float16):
                logits = model(idx)
                b, t, c = logits.shape
                loss = nn.functional.cross_entropy(logits.view(b * t, c), targets.view(b * t), ignore_index=0)
                loss = loss / gradient_accumulation_steps
                accumulated_loss += loss.detach()
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
            scaler.scale(loss).backward()  # error: [unsynced-step, mean-of-means]
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
