from tqdm import tqdm


class Learner:
    def __init__(self, model, optimizer, trainloader):
        self.model = model
        self.optimizer = optimizer
        self.trainloader = trainloader

    def fit(self, epochs, accumulate_every_n_batches=1):
        for epoch in range(epochs):
            running = 0.0
            bar = tqdm(self.trainloader)
            for batch_idx, batch in enumerate(bar):
                loss = self.model.evaluate(batch)
                bar.set_description(f"epoch {epoch} loss {loss:.4f}")
                loss.backward()  # error: [missing-loss-scaling]
                if accumulate_every_n_batches > 1:
                    loss = loss / accumulate_every_n_batches
                    if (batch_idx + 1) % accumulate_every_n_batches == 0 or batch_idx + 1 == len(self.trainloader):
                        self.optimizer.step()
                        self.optimizer.zero_grad()
                else:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                running += loss.item()
