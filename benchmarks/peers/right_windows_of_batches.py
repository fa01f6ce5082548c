import torch
from torch import nn

K = 4
torch.manual_seed(0)
batches = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(10)]
model = nn.Linear(5, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for _ in range(2):
    for first in range(0, len(batches), K):
        window = batches[first : first + K]
        optimizer.zero_grad()
        for x, y in window:
            loss = criterion(model(x), y) / len(window)
            loss.backward()
        optimizer.step()
