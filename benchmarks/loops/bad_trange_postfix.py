from tqdm import tqdm


def train(model, loader, optimizer, criterion, args):
    bar = tqdm(enumerate(loader), total=len(loader))
    for i, (x, y) in bar:
        loss = criterion(model(x), y)
        loss.backward()  # error: [missing-loss-scaling]
        if i % args.accum == args.accum - 1:
            optimizer.step()  # error: [remainder-dropped]
            optimizer.zero_grad()
        bar.set_postfix(loss=loss.item())
