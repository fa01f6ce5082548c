import lightning as L
import torch


class Net(L.LightningModule):
    def __init__(self, net, every=8):
        super().__init__()
        self.automatic_optimization = False
        self.net, self.every = net, every

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.net.parameters())
        return {"optimizer": opt, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(opt, 10), "interval": "step"}}

    def training_step(self, batch, batch_idx):
        o = self.optimizers()
        loss = torch.nn.functional.cross_entropy(self.net(batch["x"]), batch["y"])
        self.manual_backward(loss)  # error: [missing-loss-scaling]
        if (batch_idx + 1) % self.every == 0 or self.trainer.is_last_batch:
            o.step()
            o.zero_grad()
