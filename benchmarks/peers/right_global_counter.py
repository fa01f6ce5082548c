import torch
from torch import nn

K = 4
torch.manual_seed(0)
batches = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(6)]
model = nn.Linear(5, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

seen = 0
for _ in range(4):
    for x, y in batches:
        loss = criterion(model(x), y) / K
        loss.backward()
        seen += 1
        if seen % K == 0:
            optimizer.step()
            optimizer.zero_grad()
