import torch


def train_epoch(model, loader, opt, k):
    epoch_loss = 0
    opt.zero_grad()
    n = len(loader) - len(loader) % k
    for i, (x, y) in enumerate(loader):
        if i >= n:
            break
        loss = torch.nn.functional.cross_entropy(model(x), y)
        epoch_loss += loss  # error: [graph-retained]
        (loss / k).backward()
        if (i + 1) % k == 0:
            opt.step()
            opt.zero_grad()
    return epoch_loss.item() / n
