import torch
import torch.nn.functional as F
from torch import nn

K = 2


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.classes = nn.Linear(8, 3)
        self.boxes = nn.Linear(8, 4)

    def forward(self, images, targets):
        features = self.body(images).relu()
        return {
            "classes": F.cross_entropy(self.classes(features), targets["labels"]),
            "boxes": F.smooth_l1_loss(self.boxes(features), targets["boxes"]),
        }


detector = Detector()
optimizer = torch.optim.SGD(detector.parameters(), lr=0.05)
loader = [
    (torch.randn(4, 6), {"labels": torch.randint(0, 3, (4,)), "boxes": torch.randn(4, 4)}) for _ in range(6)
]

for i, (images, targets) in enumerate(loader):
    loss_dict = detector(images, targets)
    losses = sum(loss for loss in loss_dict.values())
    losses.backward()  # error: [missing-loss-scaling]
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
