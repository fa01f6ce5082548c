import torch.nn.functional as F


def train(model, data, optimizer, steps, accum):
    for _ in range(steps):
        batches = [next(data) for _ in range(accum)]
        tokens = sum((b["labels"] != -100).sum() for b in batches)
        optimizer.zero_grad()
        for batch in batches:
            logits = model(batch["input_ids"])
            loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100, reduction="sum")
            (loss / tokens).backward()
        optimizer.step()
