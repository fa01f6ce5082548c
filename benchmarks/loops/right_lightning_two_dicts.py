import lightning as L
import torch


class VAEGAN(L.LightningModule):
    def __init__(self, vae, disc, accumulate):
        super().__init__()
        self.automatic_optimization = False
        self.vae, self.disc, self.accumulate = vae, disc, accumulate

    def configure_optimizers(self):
        opt_v = torch.optim.Adam(self.vae.parameters(), lr=1e-4)
        opt_d = torch.optim.Adam(self.disc.parameters(), lr=1e-4)
        return [{"optimizer": opt_v, "lr_scheduler": torch.optim.lr_scheduler.StepLR(opt_v, 10)}, {"optimizer": opt_d}]

    def training_step(self, batch, batch_idx):
        opt_v, opt_d = self.optimizers()
        n = self.trainer.num_training_batches
        size = min(self.accumulate, n - batch_idx // self.accumulate * self.accumulate)
        boundary = (batch_idx + 1) % self.accumulate == 0 or batch_idx + 1 == n
        self.toggle_optimizer(opt_v)
        rec = self.vae(batch)
        loss = torch.nn.functional.mse_loss(rec, batch) - self.disc(rec).mean()
        self.manual_backward(loss / size)
        if boundary:
            opt_v.step()
            opt_v.zero_grad()
        self.untoggle_optimizer(opt_v)
        self.toggle_optimizer(opt_d)
        d = (self.disc(rec.detach()) - self.disc(batch)).mean()
        self.manual_backward(d / size)
        if boundary:
            opt_d.step()
            opt_d.zero_grad()
        self.untoggle_optimizer(opt_d)
