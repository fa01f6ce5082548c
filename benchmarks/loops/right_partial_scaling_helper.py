from functools import partial


def scaled_loss(criterion, k, out, y):
    return criterion(out, y) / k


def train(model, data, optimizer, criterion, K, steps):
    loss_fn = partial(scaled_loss, criterion, K)
    for _ in range(steps):
        for _ in range(K):
            x, y = next(data)
            loss_fn(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
