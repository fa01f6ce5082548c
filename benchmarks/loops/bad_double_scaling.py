import torch.nn.functional as F


def train(model, loader, optimizer, accum_steps):
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        loss = loss / accum_steps / x.size(0)
        loss.backward()  # error: [double-loss-scaling]
        if (i + 1) % accum_steps == 0:
            optimizer.step()  # error: [remainder-dropped]
            optimizer.zero_grad()
