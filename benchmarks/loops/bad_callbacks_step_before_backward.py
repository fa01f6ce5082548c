import torch


class Callback:
    def on_batch_end(self, trainer): ...


class Accumulate(Callback):
    def __init__(self, n):
        self.n = n

    def on_batch_end(self, trainer):
        if trainer.step % self.n == 0:
            trainer.opt.step()  # error: [off-by-one-window, remainder-dropped]
            trainer.opt.zero_grad()


class Learner:
    def __init__(self, model, loss_fn, loader, opt, callbacks, n):
        self.model, self.loss_fn, self.loader, self.opt = model, loss_fn, loader, opt
        self.callbacks = callbacks
        self.n = n
        self.step = 0

    def fit(self, epochs):
        for _ in range(epochs):
            for self.step, (x, y) in enumerate(self.loader):
                loss = self.loss_fn(self.model(x), y) / self.n
                loss.backward()
                for cb in self.callbacks:
                    cb.on_batch_end(self)


def main(model, loader):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    Learner(model, torch.nn.MSELoss(), loader, opt, [Accumulate(4)], 4).fit(3)
