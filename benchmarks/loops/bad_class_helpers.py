import torch
from torch import nn


class Engine:
    def __init__(self, net: nn.Module, config):
        self.net = net
        self.config = config
        self.optim = torch.optim.AdamW(self.net.parameters(), lr=config.lr)
        self.criterion = nn.CrossEntropyLoss()

    def forward_backward(self, batch):
        loss = self.criterion(self.net(batch["x"]), batch["y"])
        loss.backward()  # error: [missing-loss-scaling]
        return loss.item()

    def update(self):
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.config.max_norm)
        self.optim.step()  # error: [remainder-dropped]
        self.optim.zero_grad()

    def should_update(self, index):
        return (index + 1) % self.config.accumulation_steps == 0

    def run_epoch(self, loader):
        losses = []
        for index, batch in enumerate(loader):
            losses.append(self.forward_backward(batch))
            if self.should_update(index):
                self.update()
        return sum(losses) / len(losses)

    def fit(self, loader):
        for epoch in range(self.config.epochs):
            self.run_epoch(loader)
