def train_epoch(model, progress, optimizer, loss_fn, every):
    optimizer.zero_grad()
    for i, batch in progress:
        loss = loss_fn(model(batch["image"]), batch["target"])
        loss.backward()  # error: [missing-loss-scaling]
        if (i + 1) % every == 0:
            optimizer.step()  # error: [remainder-dropped]
            optimizer.zero_grad()
