import torch
from accelerate import Accelerator
from torch import nn

K = 4
torch.manual_seed(0)
batches = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(8)]
accelerator = Accelerator(gradient_accumulation_steps=K, cpu=True)
model = nn.Linear(5, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = accelerator.prepare(model, optimizer)

for _ in range(2):
    for x, y in batches:
        with accelerator.accumulate(model):
            loss = criterion(model(x), y) / K
            accelerator.backward(loss)  # error: [double-loss-scaling]
            optimizer.step()
            optimizer.zero_grad()
