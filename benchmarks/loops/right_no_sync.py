from contextlib import nullcontext


def train(ddp_model, data, optimizer, criterion, K, steps):
    for _ in range(steps):
        for micro in range(K):
            x, y = next(data)
            last = micro == K - 1
            with nullcontext() if last else ddp_model.no_sync():
                loss = criterion(ddp_model(x), y) / K
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
