def train(model, loader, backbone_opt, head_opt, criterion, K):
    for _ in range(5):
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y) / K).backward()
            if (i + 1) % K == 0:
                backbone_opt.step()  # error: [remainder-dropped]
                head_opt.step()  # error: [remainder-dropped]
                backbone_opt.zero_grad()
                head_opt.zero_grad()
