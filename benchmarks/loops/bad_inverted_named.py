def train(cfg, model, loader, optimizer, criterion):
    accum = cfg.optim.accum
    for step, batch in enumerate(loader, start=1):
        is_accumulating = step % accum != 0 and step != len(loader)
        loss = criterion(model(batch["image"]), batch["label"])
        loss.backward()  # error: [missing-loss-scaling]
        if is_accumulating:
            continue
        optimizer.step()
        optimizer.zero_grad()
