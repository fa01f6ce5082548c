class Loop:
    def __init__(self, model, optimizer, criterion, accumulation=4):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion
        self.accumulation = accumulation

    def epoch(self, loader):
        last = len(loader) // self.accumulation * self.accumulation
        for index, (x, y) in enumerate(loader):
            if index == last:
                break
            loss = self.criterion(self.model(x), y) / self.accumulation
            loss.backward()
            if (index + 1) % self.accumulation == 0:
                self.model.zero_grad()  # error: [zero-grad-misplaced]
                self.optimizer.step()
