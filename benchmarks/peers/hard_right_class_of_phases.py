import torch
from torch import nn

K = 4
torch.manual_seed(0)
batches = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(8)]
model = nn.Linear(5, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


class Trainer:
    def __init__(self):
        self.done = 0

    def forward(self, x, y):
        self.loss = criterion(model(x), y)

    def backward(self):
        (self.loss / K).backward()
        self.done += 1

    def update(self):
        if self.done % K == 0:
            optimizer.step()
            optimizer.zero_grad()


trainer = Trainer()
for _ in range(2):
    for x, y in batches:
        trainer.forward(x, y)
        trainer.backward()
        trainer.update()
