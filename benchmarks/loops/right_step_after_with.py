import torch


def train(model, loader, optimizer, criterion, K):
    full = len(loader) - len(loader) % K
    for i, batch in enumerate(loader):
        if i >= full:
            continue
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(batch["x"]), batch["y"])
        loss = loss * (1 / K)
        loss.backward()
        if i % K != K - 1:
            continue
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
