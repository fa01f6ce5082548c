def at_most(loader, maximum):
    for number, batch in enumerate(loader):
        if maximum and number >= maximum:
            break
        yield number, batch


def train(model, loader, optimizer, criterion, K, maximum):
    for number, (x, y) in at_most(loader, maximum):
        (criterion(model(x), y) / K).backward()
        done = number + 1
        if done % K == 0:
            optimizer.step()  # error: [remainder-dropped]
            optimizer.zero_grad()
