import torch
from torch import nn

K = 4
torch.manual_seed(0)
batches = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(8)]
model = nn.Linear(5, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

other = nn.Linear(5, 1)
optimizer_of_other = torch.optim.SGD(other.parameters(), lr=0.05)

for _ in range(2):
    for i, (x, y) in enumerate(batches):
        if i % 2 == 0:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        else:
            optimizer_of_other.zero_grad()
            loss = criterion(other(x), -y)
            loss.backward()
            optimizer_of_other.step()
