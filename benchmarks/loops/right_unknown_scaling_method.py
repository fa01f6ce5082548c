class Runner(BaseRunner):
    def train_epoch(self):
        for i, batch in enumerate(self.loader):
            loss = self.compute_loss(batch)
            loss.backward()
            if (i + 1) % self.cfg.accum == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
        self.flush()
