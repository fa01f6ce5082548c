import torch.nn.functional as F


def compute_loss(model, batch, accum):
    logits = model(batch["input"])
    return F.cross_entropy(logits, batch["label"]) / accum


def train(model, data_iter, optimizer, accum, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(accum):
            compute_loss(model, next(data_iter), accum).backward()
        optimizer.step()
