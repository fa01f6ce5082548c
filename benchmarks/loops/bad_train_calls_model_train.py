def train(model, loader, optimizer, criterion, args):
    for _ in range(args.epochs):
        for step, (x, y) in enumerate(loader):
            model.train()
            loss = criterion(model(x), y)
            if args.accumulation_steps > 1:
                loss = loss / args.accumulation_steps
            loss.backward()
            if (step + 1) % args.accumulation_steps == 0:
                optimizer.step()  # error: [remainder-dropped]
                optimizer.zero_grad()
