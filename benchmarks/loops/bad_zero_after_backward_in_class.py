import torch


class Trainer:
    def __init__(self, model, loader, lr=1e-3, accumulate=4):
        self.model = model
        self.loader = loader
        self.accumulate = accumulate
        self.criterion = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

    def train_step(self, batch):
        x, y = batch
        loss = self.criterion(self.model(x), y) / self.accumulate
        loss.backward()
        self.optimizer.zero_grad()  # error: [zero-grad-misplaced]
        return loss.item()

    def train_epoch(self):
        n = len(self.loader)
        for i, batch in enumerate(self.loader):
            self.train_step(batch)
            if (i + 1) % self.accumulate == 0 or i == n - 1:
                self.optimizer.step()
