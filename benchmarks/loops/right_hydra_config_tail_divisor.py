import hydra
import torch
import torch.nn.functional as F


@hydra.main(config_path="conf", config_name="train", version_base=None)
def main(cfg):
    net = torch.hub.load("pytorch/vision", cfg.model)
    loader = make_loader(cfg)
    optim = torch.optim.SGD(net.parameters(), lr=cfg.lr, momentum=0.9)
    n_batches = len(loader)
    for epoch in range(cfg.epochs):
        optim.zero_grad()
        for it, (image, label) in enumerate(loader):
            window_start = it - it % cfg.accum
            window = min(cfg.accum, n_batches - window_start)
            loss = F.cross_entropy(net(image), label) / window
            loss.backward()
            if (it + 1) % cfg.accum == 0 or it + 1 == n_batches:
                optim.step()
                optim.zero_grad()
