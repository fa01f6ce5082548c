import torch


def train(G, D, loader, n_critic, latent):
    optimizer_G = torch.optim.RMSprop(G.parameters(), lr=5e-5)
    optimizer_D = torch.optim.RMSprop(D.parameters(), lr=5e-5)
    for i, (imgs, _) in enumerate(loader):
        optimizer_D.zero_grad()
        z = torch.randn(imgs.shape[0], latent)
        fake = G(z).detach()
        loss_D = -torch.mean(D(imgs)) + torch.mean(D(fake))
        loss_D.backward()
        optimizer_D.step()
        for p in D.parameters():
            p.data.clamp_(-0.01, 0.01)
        if i % n_critic == 0:
            optimizer_G.zero_grad()
            loss_G = -torch.mean(D(G(z)))
            loss_G.backward()
            optimizer_G.step()
