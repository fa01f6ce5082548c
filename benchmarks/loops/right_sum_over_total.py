import torch.nn.functional as F


def train(model, loader, optimizer, K):
    window = []
    for batch in loader:
        window.append(batch)
        if len(window) < K:
            continue
        total = sum(b["mask"].sum() for b in window)
        for b in window:
            loss = F.cross_entropy(model(b["x"]), b["y"], reduction="sum") / total
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        window = []
