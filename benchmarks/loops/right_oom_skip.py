import torch


def train(model, data, optimizer, criterion, K, steps):
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(K):
            x, y = next(data)
            try:
                loss = criterion(model(x), y) / K
                loss.backward()
            except RuntimeError as error:
                if "out of memory" in str(error):
                    torch.cuda.empty_cache()
                    optimizer.zero_grad()
                    break
                raise
        optimizer.step()
