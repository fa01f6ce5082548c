import torch


def cycle(loader):
    while True:
        for batch in loader:
            yield batch


class Trainer:
    def __init__(self, model, loader, lr, num_steps, gradient_accumulate_every=2):
        self.model = model
        self.dl = cycle(loader)
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.num_steps = num_steps
        self.gradient_accumulate_every = gradient_accumulate_every
        self.step = 0

    def train(self):
        while self.step < self.num_steps:
            for _ in range(self.gradient_accumulate_every):
                loss = self.model(next(self.dl))
                loss = loss / self.gradient_accumulate_every
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # error: [clip-before-complete]
            self.opt.step()
            self.opt.zero_grad()
            self.step += 1
