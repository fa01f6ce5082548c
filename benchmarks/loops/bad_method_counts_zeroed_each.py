import torch


class Processor:
    def __init__(self, model, optimizer, criterion, accumulation_steps, scaler=None):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion
        self.accumulation_steps = accumulation_steps
        self.scaler = scaler
        self.step_count = 0

    def forward_backward(self, data):
        images, labels = self.parse(data)
        loss = self.criterion(self.model(images), labels)
        self.optimizer.zero_grad()  # error: [zero-grad-every-batch]
        if self.scaler is None:
            loss.backward()
            self.step_count += 1
            if self.step_count % self.accumulation_steps == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
        else:
            self.scaler.scale(loss).backward()
            self.step_count += 1
            if self.step_count % self.accumulation_steps == 0:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
        return loss.item()
