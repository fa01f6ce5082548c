import torch
from torch import nn
from torch.utils.data import DataLoader

K = 3
samples = [(torch.randn(6), i % 3) for i in range(24)]
loader = DataLoader(samples, batch_size=2, shuffle=True)
model = nn.Linear(6, 3)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)

for epoch in range(2):
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / K
        loss.backward()
        if step % K == K - 1 or step == len(loader) - 1:
            optimizer.step()
            optimizer.zero_grad()
