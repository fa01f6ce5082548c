import torch
import pytorch_lightning as pl


class GAN(pl.LightningModule):
    def __init__(self, generator, discriminator):
        super().__init__()
        self.automatic_optimization = False
        self.generator = generator
        self.discriminator = discriminator

    def training_step(self, batch, batch_idx):
        optimizer_g, optimizer_d = self.optimizers()
        imgs, _ = batch
        z = torch.randn(imgs.shape[0], 100)
        self.toggle_optimizer(optimizer_g)
        fake = self.generator(z)
        g_loss = -self.discriminator(fake).mean()
        self.manual_backward(g_loss)
        optimizer_g.step()
        optimizer_g.zero_grad()
        self.untoggle_optimizer(optimizer_g)
        self.toggle_optimizer(optimizer_d)
        d_loss = self.discriminator(fake.detach()).mean() - self.discriminator(imgs).mean()
        self.manual_backward(d_loss)
        optimizer_d.step()
        optimizer_d.zero_grad()
        self.untoggle_optimizer(optimizer_d)
