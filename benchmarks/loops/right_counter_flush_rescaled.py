import torch
from tqdm import tqdm


def train(model, criterion, optimizer, loader, epochs, batches_per_update):
    for epoch in range(epochs):
        pending = 0
        optimizer.zero_grad()
        for x, y in tqdm(loader, desc=f"epoch {epoch}"):
            criterion(model(x), y).backward()
            pending += 1
            if pending == batches_per_update:
                for p in model.parameters():
                    if p.grad is not None:
                        p.grad /= pending
                optimizer.step()
                optimizer.zero_grad()
                pending = 0
        if pending:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad /= pending
            optimizer.step()
            optimizer.zero_grad()
