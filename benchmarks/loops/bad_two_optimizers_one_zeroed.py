import torch


def train(encoder, head, loader, criterion, K):
    opt_e = torch.optim.Adam(encoder.parameters(), lr=1e-4)
    opt_h = torch.optim.Adam(head.parameters(), lr=1e-3)
    usable = len(loader) // K * K
    for i, (x, y) in enumerate(loader):
        if i >= usable:
            break
        loss = criterion(head(encoder(x)), y) / K
        loss.backward()
        if (i + 1) % K == 0:
            opt_e.step()
            opt_h.step()  # error: [partial-zero-grad]
            opt_e.zero_grad()
