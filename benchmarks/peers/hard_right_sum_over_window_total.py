import torch
from torch import nn

K = 4
torch.manual_seed(0)
batches = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(8)]
model = nn.Linear(5, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

summed = nn.MSELoss(reduction="sum")
for _ in range(2):
    for first in range(0, len(batches), K):
        window = batches[first : first + K]
        total = sum(y.numel() for _, y in window)
        for i, (x, y) in enumerate(window):
            loss = summed(model(x), y) / total
            loss.backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
