def train(model, loader, optimizer, ce, mse, weight):
    for x, y, z in loader:
        optimizer.zero_grad()
        a, b = model(x)
        ce(a, y).backward(retain_graph=True)
        (weight * mse(b, z)).backward()
        optimizer.step()
