import torch


def train(model, loader, optimizer, accum_iter, num_updates):
    stream = endless(loader)
    for update in range(num_updates):
        for j in range(accum_iter):
            x, y = next(stream)
            loss = torch.nn.functional.cross_entropy(model(x), y) / accum_iter
            loss.backward()
        optimizer.zero_grad()  # error: [zero-grad-misplaced]
        optimizer.step()
