import torch


def train(G, D, batches, bce, K, steps, z_dim):
    g_opt = torch.optim.Adam(G.parameters(), lr=2e-4)
    d_opt = torch.optim.Adam(D.parameters(), lr=2e-4)
    for _ in range(steps):
        d_opt.zero_grad()
        for _ in range(K):
            real = next(batches)
            fake = G(torch.randn(real.size(0), z_dim)).detach()
            d_loss = bce(D(real), torch.ones(real.size(0), 1)) + bce(D(fake), torch.zeros(real.size(0), 1))
            d_loss.backward()  # error: [missing-loss-scaling]
        d_opt.step()
        g_opt.zero_grad()
        for _ in range(K):
            real = next(batches)
            fake = G(torch.randn(real.size(0), z_dim))
            g_loss = bce(D(fake), torch.ones(real.size(0), 1))
            (g_loss / K).backward()
        g_opt.step()
