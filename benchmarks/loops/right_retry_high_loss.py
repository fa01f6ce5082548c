def train(model, loader, optimizer, average, args):
    for step, batch in enumerate(loader):
        repeats = 0
        while True:
            loss = model(batch)
            if args.repeats == 0 or average.size() < args.enough:
                break
            if loss.item() > average.mean():
                repeats += 1
                if repeats > args.repeats:
                    break
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            else:
                break
        loss = loss / args.accumulation_steps
        loss.backward()
        if (step + 1) % args.accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
