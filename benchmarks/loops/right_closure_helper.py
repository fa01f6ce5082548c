def train(model, data, optimizer, criterion, K, steps):
    def micro(batch):
        x, y = batch
        loss = criterion(model(x), y) / K
        loss.backward()
        return loss.detach()

    for _ in range(steps):
        optimizer.zero_grad()
        total = sum(micro(next(data)) for _ in range(K))
        optimizer.step()
        print(float(total))
