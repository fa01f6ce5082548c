import torch


def update(model, opt, batch, num_chunks):
    opt.zero_grad()
    for x, y in zip(batch["x"].chunk(num_chunks), batch["y"].chunk(num_chunks)):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()  # error: [missing-loss-scaling]
    opt.step()


def train(model, loader, lr=1e-3, num_chunks=4):
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    for epoch in range(10):
        for batch in loader:
            update(model, opt, batch, num_chunks)
