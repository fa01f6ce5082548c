class StepEvery:
    def __init__(self, optimizer, every):
        self.optimizer = optimizer
        self.every = every

    def __call__(self, i):
        if (i + 1) % self.every == 0:
            self.optimizer.step()  # error: [remainder-dropped]
            self.optimizer.zero_grad()


def train(model, loader, optimizer, criterion, every=4):
    update = StepEvery(optimizer, every)
    for i, (x, y) in enumerate(loader):
        criterion(model(x), y).backward()  # error: [missing-loss-scaling]
        update(i)
