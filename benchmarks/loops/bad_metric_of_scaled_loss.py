import torch


def train_epoch(model, loader, opt, k):
    model.train()
    total = 0.0
    opt.zero_grad()
    n = len(loader) - len(loader) % k
    for i, (x, y) in enumerate(loader):
        if i >= n:
            break
        loss = torch.nn.functional.cross_entropy(model(x), y) / k
        loss.backward()
        total += loss.item()  # error: [metric-misreported]
        if (i + 1) % k == 0:
            opt.step()
            opt.zero_grad()
    print("mean loss", total / n)
