def train(model, loader, optimizer, every):
    optimizer.zero_grad()
    for i, batch in enumerate(loader):
        loss = model(batch)
        loss.backward()  # error: [missing-loss-scaling]
        if i % every == 0 and i > 0:
            optimizer.step()  # error: [off-by-one-window, remainder-dropped]
            optimizer.zero_grad()
