import torch


def train(model, loader, optimizer, n_chunks):
    criterion = torch.nn.CrossEntropyLoss()
    for x, y in loader:
        optimizer.zero_grad()
        for xs, ys in zip(torch.chunk(x, n_chunks), torch.chunk(y, n_chunks)):
            criterion(model(xs), ys).backward()  # error: [missing-loss-scaling]
        optimizer.step()
