import torch


def train(gen, disc, loader, bce, z_dim):
    opt_g = torch.optim.Adam(gen.parameters(), lr=2e-4)
    opt_d = torch.optim.Adam(disc.parameters(), lr=2e-4)
    for real, _ in loader:
        ones = torch.ones(real.size(0), 1)
        zeros = torch.zeros(real.size(0), 1)
        noise = torch.randn(real.size(0), z_dim)
        fake = gen(noise)
        opt_d.zero_grad()
        loss_real = bce(disc(real), ones)
        loss_real.backward()
        loss_fake = bce(disc(fake.detach()), zeros)
        loss_fake.backward()
        opt_d.step()
        opt_g.zero_grad()
        bce(disc(fake), ones).backward()
        opt_g.step()
