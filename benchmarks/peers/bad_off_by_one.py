import torch
from torch import nn

K = 4
torch.manual_seed(0)
batches = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(8)]
model = nn.Linear(5, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

step = 0
while step < 17:
    for x, y in batches:
        loss = criterion(model(x), y) / K
        loss.backward()
        if step % K == 0:
            optimizer.step()  # error: [off-by-one-window]
            optimizer.zero_grad()
        step += 1
        if step == 17:
            break
