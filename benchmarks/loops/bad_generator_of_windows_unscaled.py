import torch


def windows(dataset, micro, per_step):
    window = []
    for batch in torch.utils.data.DataLoader(dataset, batch_size=micro, shuffle=True):
        window.append(batch)
        if len(window) == per_step:
            yield window
            window = []
    if window:
        yield window


def train(model, dataset, opt):
    for epoch in range(3):
        for window in windows(dataset, 8, 4):
            for x, y in window:
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()  # error: [missing-loss-scaling]
            opt.step()
            opt.zero_grad()
