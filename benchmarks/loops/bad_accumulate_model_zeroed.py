class Runner:
    def epoch(self):
        for batch in self.loader:
            with self.accelerator.accumulate(self.model):
                loss = self.model(batch)
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.model.zero_grad()  # error: [zero-grad-every-batch]
