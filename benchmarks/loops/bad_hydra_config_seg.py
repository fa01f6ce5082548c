import hydra
import torch
import torch.nn.functional as F
from omegaconf import DictConfig
from torch.utils.data import DataLoader

from segmentation.data import CityDataset
from segmentation.nets import build_unet


@hydra.main(config_path="conf", config_name="train", version_base=None)
def main(cfg: DictConfig) -> None:
    device = torch.device(cfg.device)
    net = build_unet(cfg.net).to(device)
    loader = DataLoader(CityDataset(cfg.data), batch_size=cfg.train.batch_size, shuffle=True, drop_last=True)
    optim = torch.optim.AdamW(net.parameters(), lr=cfg.train.lr)
    for epoch in range(cfg.train.epochs):
        net.train()
        for it, sample in enumerate(loader):
            image, mask = sample["image"].to(device), sample["mask"].to(device)
            logits = net(image)
            loss = F.cross_entropy(logits, mask, ignore_index=255)
            loss.backward()  # error: [missing-loss-scaling]
            if (it + 1) % cfg.train.accum_steps == 0 or (it + 1) == len(loader):
                optim.step()
                optim.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
