import torch


def step_d(D, G, real, opt_d, lam, z_dim):
    opt_d.zero_grad()
    fake = G(torch.randn(real.size(0), z_dim)).detach()
    loss = D(fake).mean() - D(real).mean()
    alpha = torch.rand(real.size(0), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_()
    (grad,) = torch.autograd.grad(D(mixed).sum(), mixed, create_graph=True)
    loss = loss + lam * ((grad.norm(dim=1) - 1) ** 2).mean()
    loss.backward()
    opt_d.step()


def train(D, G, loader, opt_d, lam, z_dim):
    for real, _ in loader:
        step_d(D, G, real, opt_d, lam, z_dim)
