import lightning as L


class Encoder(L.LightningModule):
    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        pieces = split_into_pieces(batch, self.piece_size)
        for piece in pieces:
            loss = self.loss(self(piece), piece)
            self.manual_backward(loss / len(pieces))
        self.clip_gradients(optimizer, gradient_clip_val=1.0)
        optimizer.step()
