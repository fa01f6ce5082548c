import torch


def train(G, D, loader, optG, optD, K):
    n = len(loader) - len(loader) % K
    for i, real in enumerate(loader):
        if i >= n:
            break
        last = (i + 1) % K == 0
        for p in D.parameters():
            p.requires_grad_(True)
        fake = G(torch.randn(real.size(0), 64))
        d_loss = (D(fake.detach()) - D(real)).mean() / K
        d_loss.backward()
        if last:
            optD.step()
            optD.zero_grad()
        for p in D.parameters():
            p.requires_grad_(False)
        g_loss = -D(fake).mean() / K
        g_loss.backward()
        if last:
            optG.step()
            optG.zero_grad()
