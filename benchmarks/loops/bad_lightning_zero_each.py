import lightning as L


class Tagger(L.LightningModule):
    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        opt.zero_grad()  # error: [zero-grad-every-batch]
        loss = self.model(**batch).loss / self.window
        self.manual_backward(loss)
        if (batch_idx + 1) % self.window == 0 or self.trainer.is_last_batch:
            opt.step()  # error: [remainder-misscaled]
