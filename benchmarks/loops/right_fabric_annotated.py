import lightning as L


def fit(fabric: L.Fabric, model, optimizer, batches, accumulation_iters: int, updates: int) -> None:
    for _ in range(updates):
        for _ in range(accumulation_iters):
            fabric.backward(model(next(batches)) / accumulation_iters)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
