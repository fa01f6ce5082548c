from itertools import zip_longest

import pytorch_lightning as pl
import torch


class Projector(pl.LightningModule):
    def __init__(self, encoder, kge, subbatch_size):
        super().__init__()
        self.encoder, self.kge = encoder, kge
        self.subbatch_size = subbatch_size
        self.automatic_optimization = False

    def training_step(self, collation, batch_idx):
        batch, samples = collation
        optimizer = self.optimizers()
        size = len(samples)
        steps = range(0, size, self.subbatch_size)
        optimizer.zero_grad()
        losses = []
        parts = list(zip_longest(steps, steps[1:], fillvalue=size))
        for j, k in parts:
            projections = self.encoder(batch[j:k])
            loss = torch.nn.functional.mse_loss(projections, self.kge(samples[j:k]))
            losses.append(loss.detach())
            self.manual_backward(loss / len(parts))
        optimizer.step()
        self.log("train_loss_step", torch.stack(losses).mean())
