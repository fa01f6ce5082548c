def train(model, loader, optimizer, weights):
    for images, targets in loader:
        loss_dict = model(images, targets)
        losses = sum(loss_dict[k] * weights[k] for k in loss_dict if k in weights)
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
