from itertools import islice


def train(model, loader, optimizer, criterion, K):
    batches = iter(loader)
    while True:
        window = list(islice(batches, K))
        if not window:
            break
        optimizer.zero_grad()
        for x, y in window:
            loss = criterion(model(x), y) / len(window)
            loss.backward()
        optimizer.step()
