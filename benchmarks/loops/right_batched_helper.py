def batched(iterable, n):
    group = []
    for item in iterable:
        group.append(item)
        if len(group) == n:
            yield group
            group = []
    if group:
        yield group


def train(model, loader, optimizer, criterion, K):
    for group in batched(loader, K):
        optimizer.zero_grad()
        for x, y in group:
            loss = criterion(model(x), y) / len(group)
            loss.backward()
        optimizer.step()
