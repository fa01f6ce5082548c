import torch


def train(args, model, data, optimizer, criterion, scaler):
    for step in range(args.steps):
        for _ in range(args.accumulation):
            x, y = next(data)
            loss = criterion(model(x), y) / args.accumulation
            if args.amp:
                scaler.scale(loss).backward()
            else:
                loss.backward()
        if args.amp:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)  # error: [clip-without-unscale]
            scaler.step(optimizer)
            scaler.update()
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
        optimizer.zero_grad()
