import torch


class Runner:
    def __init__(self, model, opt, accum):
        self.model, self.opt, self.accum = model, opt, accum

    def update(self, batches):
        self.opt.zero_grad()
        for b in batches:
            loss = self.model(**b).loss / len(batches)
            loss.backward()
        self.opt.step()

    def epoch(self, loader):
        held = []
        for b in loader:
            held.append(b)
            if len(held) == self.accum:
                self.update(held)
                held = []
        if held:
            self.update(held)
