import torch
from torch.utils.data import DataLoader


def main(dataset, model, accumulate, epochs):
    loader = DataLoader(dataset, batch_size=16, shuffle=True, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = torch.nn.CrossEntropyLoss()
    for epoch in range(epochs):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            loss = criterion(model(x), y) / accumulate
            loss.backward()
            if (i + 1) % accumulate == 0:
                optimizer.step()  # error: [remainder-dropped]
                optimizer.zero_grad()
