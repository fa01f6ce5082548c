def train(accelerator, model, loader, optimizer, K):
    total = len(loader)
    for index, batch in enumerate(loader):
        start = index - index % K
        size = min(K, total - start)
        accelerator.backward(model(**batch).loss / size)
        if not ((index + 1) % K == 0 or index + 1 == total):
            continue
        optimizer.step()
        optimizer.zero_grad()
