def train(args, model, data, optimizer, criterion, scaler):
    for step in range(args.steps):
        for _ in range(args.accum):
            x, y = next(data)
            loss = criterion(model(x), y)
            if args.accum > 1:
                loss = loss / args.accum
            if args.fp16:
                scaler.scale(loss).backward()
            else:
                loss.backward()
        if args.fp16:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
