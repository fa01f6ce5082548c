def cycle(loader):
    while True:
        for batch in loader:
            yield batch


def train(model, loader, optimizer, criterion, num_steps, gradient_accumulate_every):
    data = cycle(loader)
    step = 0
    while step < num_steps:
        total = 0.0
        for _ in range(gradient_accumulate_every):
            x, y = next(data)
            loss = criterion(model(x), y)
            loss = loss / gradient_accumulate_every
            total += loss.item()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
