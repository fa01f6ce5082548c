from itertools import islice


def train(model, loader, optimizer, criterion, K):
    batches = iter(loader)
    while window := list(islice(batches, K)):
        optimizer.zero_grad()
        for x, y in window:
            loss = criterion(model(x), y)
            loss.backward()  # error: [missing-loss-scaling]
        optimizer.step()
