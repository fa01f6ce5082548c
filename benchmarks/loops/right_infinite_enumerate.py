def forever(loader):
    while True:
        yield from loader


def train(model, loader, optimizer, criterion, K, max_steps):
    steps = 0
    for i, (x, y) in enumerate(forever(loader)):
        (criterion(model(x), y) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == max_steps:
                break
