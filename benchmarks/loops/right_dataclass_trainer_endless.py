from dataclasses import dataclass
from itertools import cycle

import torch
from torch import nn


@dataclass
class Args:
    accumulation: int = 4
    max_steps: int = 10_000
    max_norm: float = 1.0


class Pretrainer:
    def __init__(self, model, loader, args: Args):
        self.args = args
        self.model = model
        self.stream = cycle(loader)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=args.max_steps)

    def micro_step(self):
        batch = next(self.stream)
        out = self.model(input_ids=batch["ids"], labels=batch["ids"])
        loss = out.loss / self.args.accumulation
        loss.backward()
        return loss.detach()

    def run(self):
        for step in range(self.args.max_steps):
            self.optimizer.zero_grad(set_to_none=True)
            total = 0.0
            for _ in range(self.args.accumulation):
                total += self.micro_step()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_norm)
            self.optimizer.step()
            self.scheduler.step()
            if step % 50 == 0:
                print(step, total.item())
