import torch


class Trainer:
    def __init__(self, model, cfg):
        self.model = model
        self.accum = int(cfg.get("accum", 1))
        self.opt = torch.optim.AdamW(model.parameters(), lr=cfg["lr"])
        self.micro = 0
        self.updates = 0

    def train_step(self, batch):
        loss = self.model(**batch)["loss"]
        (loss / self.accum).backward()
        self.micro += 1
        if self.micro < self.accum:
            return loss.detach()
        self.micro = 0
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        self.updates += 1
        return loss.detach()

    def train(self, stream, max_updates):
        while self.updates < max_updates:
            self.train_step(next(stream))
