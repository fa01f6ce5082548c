import torch.nn as nn
import torch.nn.functional as F


class LM(nn.Module):
    def __init__(self, vocabulary=31, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, input_ids, labels=None, num_items=None):
        logits = self.head(self.rnn(self.embed(input_ids))[0])
        loss = None
        if labels is not None:
            scores, targets = logits[:, :-1].reshape(-1, logits.size(-1)), labels[:, 1:].reshape(-1)
            reduction = "sum" if num_items is not None else "mean"
            loss = F.cross_entropy(scores, targets, ignore_index=-100, reduction=reduction)
            if num_items is not None:
                loss = loss / num_items
        return {"loss": loss, "logits": logits}


def train(data, optimizer, accum=4):
    model = LM()
    for start in range(0, len(data), accum):
        chunk = data[start : start + accum]
        num_items = sum((labels[:, 1:] != -100).sum() for _, labels in chunk)
        optimizer.zero_grad()
        for ids, labels in chunk:
            out = model(ids, labels=labels, num_items=num_items)
            loss = out["loss"]
            loss.backward()
        optimizer.step()
