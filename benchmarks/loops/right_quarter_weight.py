def train(model, loader, optimizer, ce, mse):
    for x, y, z in loader:
        logits, recon = model(x)
        loss = 0.25 * ce(logits, y) + mse(recon, z) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
