import torch
from torch import nn

K = 4
torch.manual_seed(0)
batches = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(8)]
model = nn.Linear(5, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

source = iter(batches * 2)
for _ in range(4):
    optimizer.zero_grad()
    for _ in range(K):
        x, y = next(source)
        criterion(model(x), y).backward()  # error: [missing-loss-scaling]
    optimizer.step()
