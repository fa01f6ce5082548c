import torch
from torch import nn

K = 4
torch.manual_seed(0)
batches = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(8)]
model = nn.Linear(5, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for _ in range(2):
    for i, (x, y) in enumerate(batches):
        loss = criterion(model(x), y) / K
        loss.backward()
        if (i + 1) % K == 0:
            optimizer.step()
            for p in model.parameters():
                p.grad = None
