import torch
from torch import nn


class Engine:
    def __init__(self, net: nn.Module, config):
        self.net = net
        self.config = config
        self.optim = torch.optim.AdamW(self.net.parameters(), lr=config.lr)
        self.criterion = nn.CrossEntropyLoss()

    def forward_backward(self, batch, group):
        loss = self.criterion(self.net(batch["x"]), batch["y"]) / group
        loss.backward()
        return loss.item()

    def update(self):
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.config.max_norm)
        self.optim.step()
        self.optim.zero_grad()

    def group_size(self, index, count):
        k = self.config.accumulation_steps
        return min(k, count - index // k * k)

    def run_epoch(self, loader):
        for index, batch in enumerate(loader):
            self.forward_backward(batch, self.group_size(index, len(loader)))
            if (index + 1) % self.config.accumulation_steps == 0 or index + 1 == len(loader):
                self.update()
