import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)

K = 3
vocab = 20
class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(vocab, 16)
        self.o = nn.Linear(16, vocab)
    def forward(self, ids, labels, num_items=None):
        logits = self.o(self.e(ids))
        if num_items is None:
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum") / num_items
batches = []
for i in range(8):
    ids = torch.randint(0, vocab, (2, 10))
    labels = ids.clone()
    labels[:, 3 + i:] = -100
    batches.append((ids, labels))
model = LM()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for start in range(0, len(batches), K):
        window = batches[start:start + K]
        total = sum((l != -100).sum() for _, l in window)
        for ids, labels in window:
            loss = model(ids, labels, num_items=total)
            loss.backward()
        opt.step()
        opt.zero_grad()
