import torch


def train(model, loader, optimizer, criterion, accumulation_steps=4):
    model.train()
    for step, (x, y) in enumerate(loader):
        should_step = (step + 1) % accumulation_steps == 0 or step + 1 == len(loader)
        loss = criterion(model(x), y)
        loss.backward()  # error: [missing-loss-scaling]
        if should_step:
            optimizer.step()
            optimizer.zero_grad()
