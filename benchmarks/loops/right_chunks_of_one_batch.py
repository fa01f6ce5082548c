def train(model, loader, optimizer, criterion, micro_batch_size):
    for x, y in loader:
        optimizer.zero_grad()
        total = x.shape[0]
        for start in range(0, total, micro_batch_size):
            xs, ys = x[start : start + micro_batch_size], y[start : start + micro_batch_size]
            loss = criterion(model(xs), ys) * xs.shape[0] / total
            loss.backward()
        optimizer.step()
