import torch
from torch.cuda.amp import GradScaler, autocast


def train(args, model, data, optimizer, criterion):
    scaler = GradScaler(enabled=args.amp)
    use_scaler = args.amp and not args.bf16
    for step in range(args.steps):
        for _ in range(args.accumulation):
            x, y = next(data)
            with autocast(enabled=args.amp):
                loss = criterion(model(x), y) / args.accumulation
            if use_scaler:
                scaler.scale(loss).backward()
            else:
                loss.backward()
        if args.debug:
            print(step, loss.item())
        if use_scaler:
            if args.clip > 0:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            scaler.step(optimizer)
            scaler.update()
        else:
            if args.clip > 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
        optimizer.zero_grad()
