import lightning as L


class LitModel(L.LightningModule):
    def __init__(self, net, accumulate=4):
        super().__init__()
        self.automatic_optimization = False
        self.net = net
        self.accumulate = accumulate

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        whole = self.trainer.num_training_batches // self.accumulate * self.accumulate
        tail = self.trainer.num_training_batches - whole
        loss = self.net(batch[0], batch[1]) / (self.accumulate if batch_idx < whole else tail)
        self.manual_backward(loss)
        if (batch_idx + 1) % self.accumulate == 0 or self.trainer.is_last_batch:
            opt.step()
            opt.zero_grad()
        return loss
