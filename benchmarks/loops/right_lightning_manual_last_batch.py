import lightning.pytorch as pl
import torch


class Denoiser(pl.LightningModule):
    def __init__(self, net, accumulate: int = 2):
        super().__init__()
        self.automatic_optimization = False
        self.net = net
        self.accumulate = accumulate
        self.save_hyperparameters(ignore=["net"])

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        sch = self.lr_schedulers()
        clean, noisy = batch
        n = self.trainer.num_training_batches
        first = batch_idx - batch_idx % self.accumulate
        size = min(self.accumulate, n - first)
        loss = torch.nn.functional.l1_loss(self.net(noisy), clean)
        self.manual_backward(loss / size)
        if (batch_idx + 1) % self.accumulate == 0 or self.trainer.is_last_batch:
            self.clip_gradients(opt, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            opt.step()
            opt.zero_grad()
            sch.step()
        self.log("train/loss", loss)
