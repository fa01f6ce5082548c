import torch


def update(model, opt, batch, num_chunks):
    xs = torch.chunk(batch["x"], num_chunks)
    ys = torch.chunk(batch["y"], num_chunks)
    opt.zero_grad()
    for x, y in zip(xs, ys):
        loss = torch.nn.functional.mse_loss(model(x), y, reduction="sum") / batch["x"].numel()
        loss.backward()
    opt.step()


def train(model, loader, lr=1e-3, num_chunks=4):
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    for epoch in range(10):
        for batch in loader:
            update(model, opt, batch, num_chunks)
