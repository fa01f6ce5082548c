import torch


class Fitter:
    def __init__(self, model, lr, accumulate):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.accumulate = accumulate

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            self.epoch(loader)

    def epoch(self, loader):
        for i, (x, y) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(self.model(x), y) / self.accumulate
            loss.backward()
            if (i + 1) % self.accumulate == 0:
                self.optimizer.step()  # error: [remainder-dropped]
                self.optimizer.zero_grad(set_to_none=True)
