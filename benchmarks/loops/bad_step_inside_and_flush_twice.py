import torch

GRAD_ACCUM = 16


def train_epoch(model, loader, optimizer, scheduler, device):
    model.train()
    losses = 0.0
    for step, batch in enumerate(loader):
        batch = {k: v.to(device) for k, v in batch.items()}
        loss = model(**batch).loss / GRAD_ACCUM
        loss.backward()
        losses += loss.item()
        if step % GRAD_ACCUM == GRAD_ACCUM - 1:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    if len(loader) % GRAD_ACCUM != 0:
        optimizer.step()  # error: [remainder-misscaled]
        scheduler.step()
        optimizer.zero_grad()
    return losses
