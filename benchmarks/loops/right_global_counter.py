class Trainer:
    def __init__(self, model, optimizer, loader, criterion, accum):
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.criterion = criterion
        self.accum = accum
        self.micro_step = 0

    def fit(self, epochs):
        for epoch in range(epochs):
            for x, y in self.loader:
                loss = self.criterion(self.model(x), y) / self.accum
                loss.backward()
                self.micro_step += 1
                if self.micro_step % self.accum == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
