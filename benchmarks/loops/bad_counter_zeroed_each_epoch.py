class Trainer:
    def __init__(self, model, optimizer, criterion, k):
        self.model, self.optimizer, self.criterion, self.k = model, optimizer, criterion, k
        self.seen = 0

    def epoch(self, loader):
        self.optimizer.zero_grad()
        for x, y in loader:
            loss = self.criterion(self.model(x), y) / self.k
            loss.backward()
            self.seen += 1
            if self.seen % self.k == 0:
                self.optimizer.step()  # error: [remainder-dropped, remainder-misscaled]
                self.optimizer.zero_grad()

    def fit(self, loader, epochs):
        for _ in range(epochs):
            self.epoch(loader)
