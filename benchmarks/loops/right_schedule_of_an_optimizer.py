import torch


class RangeTest:
    """A learning rate range test: the schedule's name holds the optimizer's, and it is no optimizer."""

    def __init__(self, model, optimizer, criterion):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion

    def run(self, loader, num_iter, end_lr, accumulation_steps):
        lr_schedule = ExponentialSchedule(self.optimizer, end_lr, num_iter)
        batches = forever(loader)
        for iteration in range(num_iter):
            self.optimizer.zero_grad()
            for _ in range(accumulation_steps):
                inputs, labels = next(batches)
                loss = self.criterion(self.model(inputs), labels) / accumulation_steps
                loss.backward()
            self.optimizer.step()
            lr_schedule.step()
