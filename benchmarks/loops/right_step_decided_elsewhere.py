def train(model, loader, optimizer, criterion, controller):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        controller.backward(loss)
        if controller.is_boundary():
            optimizer.step()
            optimizer.zero_grad()
