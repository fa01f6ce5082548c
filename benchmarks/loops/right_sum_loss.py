import torch


def train(model, data, optimizer, K, steps):
    criterion = torch.nn.MSELoss(reduction="sum")
    for _ in range(steps):
        for _ in range(K):
            x, y = next(data)
            criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
