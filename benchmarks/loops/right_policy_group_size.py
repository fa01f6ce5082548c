import torch
from torch.utils.data import DataLoader


class Workspace:
    def __init__(self, cfg, model, dataset):
        self.cfg = cfg
        self.model = model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.optimizer.lr)
        self.loader = DataLoader(dataset, batch_size=cfg.dataloader.batch_size, shuffle=True)
        self.global_step = 0

    def run(self):
        every = self.cfg.training.gradient_accumulate_every
        n_batches = len(self.loader)
        for epoch in range(self.cfg.training.num_epochs):
            self.optimizer.zero_grad()
            for batch_idx, batch in enumerate(self.loader):
                batch = {k: t.to(self.cfg.device) for k, t in batch.items()}
                raw_loss = self.model.compute_loss(batch)
                group_start = (batch_idx // every) * every
                group = min(every, n_batches - group_start)
                (raw_loss / group).backward()
                last = batch_idx + 1 == n_batches
                if (batch_idx + 1) % every == 0 or last:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.global_step += 1
