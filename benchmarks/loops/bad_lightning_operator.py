import lightning.pytorch as pl
import torch


class Operator(pl.LightningModule):
    def __init__(self, net, lr=1e-4, gradient_accumulation=4):
        super().__init__()
        self.automatic_optimization = False
        self.net = net
        self.lr = lr
        self.gradient_accumulation = gradient_accumulation

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        sch = self.lr_schedulers()
        images, context = batch
        pred = self.net(images + torch.randn_like(images) * 0.01, z=context)
        loss = ((pred[..., :-1] - images[..., 1:]) ** 2).mean()
        self.manual_backward(loss / self.gradient_accumulation)
        if (batch_idx + 1) % self.gradient_accumulation == 0:
            opt.step()  # error: [remainder-dropped]
            opt.zero_grad()
            sch.step()
        self.log("train_loss", loss, prog_bar=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.lr)
        return [opt], [torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10000)]
