import torch

K = 4
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = [(torch.randn(2, 8), torch.randn(2, 1)) for _ in range(16)]
for epoch in range(3):
    for i, (x, y) in enumerate(data):
        loss = torch.nn.functional.mse_loss(model(x), y) / K
        loss.backward()
        if (i + 1) % K == 0:
            optimizer.step()  # error: [missing-zero-grad]
