import torch


class LossScaler:
    def __init__(self, every):
        self._scaler = torch.cuda.amp.GradScaler()
        self.every = every
        self.n = 0

    def __call__(self, loss, optimizer, parameters, clip=None):
        self._scaler.scale(loss).backward()
        self.n += 1
        if self.n % self.every == 0:
            if clip is not None:
                self._scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(parameters, clip)
            self._scaler.step(optimizer)
            self._scaler.update()
