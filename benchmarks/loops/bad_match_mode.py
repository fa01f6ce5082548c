def run(cfg, model, loader, optimizer, criterion):
    match cfg.mode:
        case "train":
            for i, (x, y) in enumerate(loader):
                criterion(model(x), y).backward()  # error: [missing-loss-scaling]
                if (i + 1) % cfg.accum == 0 or i + 1 == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()
        case "eval":
            model.eval()
