def train(model, loader, optimizer, criterion, accum, epochs):
    n = 0
    for epoch in range(epochs):
        optimizer.zero_grad()
        n = 0
        for x, y in loader:
            loss = criterion(model(x), y) / accum
            loss.backward()
            n += 1
            if n >= accum:
                optimizer.step()  # error: [remainder-dropped]
                optimizer.zero_grad()
                n = 0
