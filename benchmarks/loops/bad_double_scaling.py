def train(model, loader, optimizer, loss_fn, accum_steps):
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y)
        loss = loss / accum_steps / x.size(0)
        loss.backward()  # error: [double-loss-scaling]
        if (i + 1) % accum_steps == 0:
            optimizer.step()  # error: [remainder-dropped]
            optimizer.zero_grad()
