def train(model, tasks, loader, optimizer):
    for batch in loader:
        optimizer.zero_grad()
        for task in tasks:
            loss = task.loss(model(batch), batch)
            loss.backward()
        optimizer.step()
