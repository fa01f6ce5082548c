import torch
from torch import nn


class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(10, 8), nn.Linear(4, 10)

    def forward(self, x):
        mu, logvar = self.encode(x).chunk(2, dim=1)
        return self.decode(mu + torch.randn_like(mu) * (0.5 * logvar).exp()), mu, logvar


accumulate = 2
model = Codec()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(torch.rand(40, 10), batch_size=5)
for i, x in enumerate(loader):
    recon, mu, logvar = model(x)
    rec = nn.functional.mse_loss(recon, x, reduction="sum") / x.size(0)
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / x.size(0)
    (rec + 0.5 * kl).backward()  # error: [missing-loss-scaling]
    if (i + 1) % accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()
