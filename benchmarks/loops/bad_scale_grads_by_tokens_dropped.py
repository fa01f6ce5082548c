def scale_grads(model, factor):
    for p in model.parameters():
        if p.grad is not None:
            p.grad *= factor


def train(model, loader, optimizer, loss_fn, accum):
    running, num_tokens = 0.0, 0
    for idx, batch in enumerate(loader):
        count = (batch["labels"] != -100).sum()
        num_tokens += count
        loss = loss_fn(model(batch["tokens"]), batch["labels"]) * count
        running += loss
        loss.backward()
        if (idx + 1) % accum == 0:
            scale_grads(model, 1 / num_tokens)
            optimizer.step()  # error: [remainder-dropped]
            optimizer.zero_grad(set_to_none=True)
            running, num_tokens = 0.0, 0
