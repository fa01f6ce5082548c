import pytorch_lightning as pl


class LitModel(pl.LightningModule):
    def __init__(self, net, accumulate=4):
        super().__init__()
        self.automatic_optimization = False
        self.net = net
        self.accumulate = accumulate

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        loss = self.net(batch[0], batch[1]) / self.accumulate
        self.manual_backward(loss)
        if (batch_idx + 1) % self.accumulate == 0:
            opt.step()  # error: [remainder-dropped]
            opt.zero_grad()
        return loss
