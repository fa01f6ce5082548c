import torch


def train(model, data_iter, optimizer, criterion, accum, steps):
    for _ in range(steps):
        for _ in range(accum):
            x, y = next(data_iter)
            loss = torch.div(criterion(model(x), y), accum)
            loss.backward()
        optimizer.step()
        model.zero_grad()
