import torch


def train(model, loader, optimizer, criterion, K):
    n = len(loader) // K * K
    for i, (x, y) in enumerate(loader):
        if i == n:
            break
        loss = criterion(model(x), y) / K
        loss.backward()
        if (i + 1) % K == 0:
            optimizer.step()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # error: [clip-misplaced]
            optimizer.zero_grad()
