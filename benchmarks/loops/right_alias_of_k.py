def train(args, model, loader, optimizer, criterion):
    K = args.gradient_accumulation_steps
    n = len(loader)
    for i, (x, y) in enumerate(loader):
        size = K if i < n // K * K else n % K
        loss = criterion(model(x), y) / size
        loss.backward()
        if (i + 1) % args.gradient_accumulation_steps == 0 or i + 1 == n:
            optimizer.step()
            optimizer.zero_grad()
