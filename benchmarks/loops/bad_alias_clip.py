from torch.nn.utils import clip_grad_norm_ as clip_norm


def train(model, data, optimizer, criterion, K, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(K):
            x, y = next(data)
            loss = criterion(model(x), y) / K
            loss.backward()
            clip_norm(model.parameters(), 0.5)  # error: [clip-before-complete]
        optimizer.step()
