import torch


def train(G, D, loader, bce, z_dim):
    opt_d = torch.optim.Adam(D.parameters())
    opt_g = torch.optim.Adam(G.parameters())
    for real, _ in loader:
        n = real.size(0)
        fake = G(torch.randn(n, z_dim))
        D.zero_grad()
        real_loss = bce(D(real), torch.ones(n)) / 2
        fake_loss = bce(D(fake.detach()), torch.zeros(n)) / 2
        real_loss.backward()
        fake_loss.backward()
        opt_d.step()
        G.zero_grad()
        bce(D(fake), torch.ones(n)).backward()
        opt_g.step()
