import itertools

import torch


class Engine:
    def __init__(self, model, cfg):
        self.model = model
        self.cfg = cfg
        self.optim = torch.optim.SGD(model.parameters(), lr=cfg.lr)
        self.scaler = torch.cuda.amp.GradScaler()

    def train(self, loader):
        k = self.cfg.accum
        for i, (x, y) in enumerate(itertools.chain.from_iterable(itertools.repeat(loader)), start=1):
            with torch.cuda.amp.autocast():
                loss = torch.nn.functional.cross_entropy(self.model(x), y)
            self.scaler.scale(loss / k).backward()
            if i % k:
                continue
            self.scaler.unscale_(self.optim)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
            self.scaler.step(self.optim)
            self.scaler.update()
            self.optim.zero_grad()
            if i // k >= self.cfg.max_updates:
                return
