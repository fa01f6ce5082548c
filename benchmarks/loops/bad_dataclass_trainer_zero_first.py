from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class TrainConfig:
    lr: float = 3e-4
    grad_accum: int = 8
    epochs: int = 3
    clip: float = 1.0


class Trainer:
    def __init__(self, model: nn.Module, loader, config: TrainConfig):
        self.model = model
        self.loader = loader
        self.config = config
        self.opt = torch.optim.AdamW(model.parameters(), lr=config.lr)
        self.loss_fn = nn.CrossEntropyLoss()

    def _forward(self, batch):
        tokens, targets = batch
        logits = self.model(tokens)
        return self.loss_fn(logits.flatten(0, 1), targets.flatten())

    def train_epoch(self):
        for idx, batch in enumerate(self.loader):
            self.opt.zero_grad()  # error: [zero-grad-every-batch]
            loss = self._forward(batch) / self.config.grad_accum
            loss.backward()
            last = idx == len(self.loader) - 1
            if (idx + 1) % self.config.grad_accum == 0 or last:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
                self.opt.step()  # error: [remainder-misscaled]

    def fit(self):
        for epoch in range(self.config.epochs):
            self.train_epoch()
