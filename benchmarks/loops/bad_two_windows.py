import torch


def train(backbone, head, loader, criterion, K_backbone, K_head):
    opt_b = torch.optim.AdamW(backbone.parameters(), lr=1e-5)
    opt_h = torch.optim.AdamW(head.parameters(), lr=1e-3)
    for i, (x, y) in enumerate(loader):
        features = backbone(x)
        loss = criterion(head(features), y)
        loss.backward()  # error: [missing-loss-scaling]
        opt_h.step()
        opt_h.zero_grad()
        if (i + 1) % K_backbone == 0:
            opt_b.step()  # error: [remainder-dropped]
            opt_b.zero_grad()
