def run_epoch(args, model, loader, optimizer, criterion):
    for i, batch in enumerate(loader):
        loss = criterion(model(batch["x"]), batch["y"])
        loss.backward()  # error: [missing-loss-scaling]
        if (i + 1) % args.grad_accum:
            continue
        optimizer.step()  # error: [remainder-dropped]
        optimizer.zero_grad()
