import torch


def train(model, loader, optimizer, contrastive, K):
    features = []
    for i, (x, _) in enumerate(loader):
        features.append(model(x))
        if (i + 1) % K == 0 or i + 1 == len(loader):
            optimizer.zero_grad()
            contrastive(torch.cat(features)).backward()
            optimizer.step()
            features = []
