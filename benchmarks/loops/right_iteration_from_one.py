class IterRunner:
    def __init__(self, model, optimizer, data, max_iters, accumulate):
        self.model, self.optimizer = model, optimizer
        self.data = iter(data)
        self.max_iters = max_iters
        self.accumulate = accumulate

    def run(self):
        self.optimizer.zero_grad()
        for iteration in range(1, self.max_iters + 1):
            batch = next(self.data)
            losses = self.model(batch)
            loss = sum(losses.values()) / self.accumulate
            loss.backward()
            if iteration % self.accumulate == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
