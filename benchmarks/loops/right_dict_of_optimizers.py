import torch


def train(nets, loader, losses):
    opts = {name: torch.optim.Adam(net.parameters()) for name, net in nets.items()}
    for batch in loader:
        for name, net in nets.items():
            opts[name].zero_grad()
            losses[name](net(batch), batch).backward()
            opts[name].step()
