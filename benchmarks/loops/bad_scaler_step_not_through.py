import torch


class Engine:
    def __init__(self, model, cfg):
        self.model = model
        self.cfg = cfg
        self.optim = torch.optim.SGD(model.parameters(), lr=cfg.lr)
        self.scaler = torch.cuda.amp.GradScaler()

    def train(self, stream):
        k = self.cfg.accum
        for i, (x, y) in enumerate(stream, start=1):
            with torch.cuda.amp.autocast():
                loss = torch.nn.functional.cross_entropy(self.model(x), y)
            self.scaler.scale(loss / k).backward()
            if i % k == 0:
                self.optim.step()  # error: [remainder-dropped, scaler-bypassed]
                self.scaler.update()
                self.optim.zero_grad()
