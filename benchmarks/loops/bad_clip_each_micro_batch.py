from torch.nn.utils import clip_grad_norm_ as clip


def train(cfg, model, loader, optimizer, criterion):
    K = cfg["accumulate_grad_batches"]
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / K
        loss.backward()
        clip(model.parameters(), cfg["clip"])  # error: [clip-before-complete]
        if (i + 1) % K == 0:
            optimizer.step()  # error: [remainder-dropped]
            optimizer.zero_grad()
