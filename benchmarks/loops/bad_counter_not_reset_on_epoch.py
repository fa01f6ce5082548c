import torch
from tqdm import tqdm


def train(model, criterion, optimizer, loader, epochs, batches_per_update):
    for epoch in range(epochs):
        pending = 0
        optimizer.zero_grad()
        for x, y in tqdm(loader, desc=f"epoch {epoch}"):
            loss = criterion(model(x), y) / batches_per_update
            loss.backward()
            pending += 1
            if pending == batches_per_update:
                optimizer.step()  # error: [remainder-dropped]
                optimizer.zero_grad()
                pending = 0
