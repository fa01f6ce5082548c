"""Losses of as many outputs as a model gives: their mean and their sum are one loss of the objective."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import argparse
import torch
import torch.nn.functional as F
from torch import nn

"""
LOOPS = labelled_loops("""\
#: right: the mean of the heads' losses
def train(model, loader, optimizer, K=3):
    assert len(loader) % K == 0
    for i, (x, y) in enumerate(loader, 1):
        losses = [F.cross_entropy(output, y) for output in model(x)]
        loss = sum(losses) / len(losses)
        (loss / K).backward()
        if i % K == 0:
            optimizer.step()
            optimizer.zero_grad()

#= GA101: the mean of the heads' losses, which takes the place of no division by K
-        (loss / K).backward()
+        loss.backward()

#= GA102: the mean of the heads' losses, divided twice
-        (loss / K).backward()
+        (loss / K / K).backward()

#= right: the mean of the stacked losses
-        loss = sum(losses) / len(losses)
+        loss = torch.stack(losses).mean()

#= GA101: the mean of the stacked losses alone
-        loss = sum(losses) / len(losses)
-        (loss / K).backward()
+        torch.stack(losses).mean().backward()

#= GA101: the sum of the stacked losses alone
-        loss = sum(losses) / len(losses)
-        (loss / K).backward()
+        torch.stack(losses).sum().backward()

#= right: the sum of the stacked losses
-        loss = sum(losses) / len(losses)
+        loss = torch.sum(torch.stack(losses))

#= right: the loss of what the heads give on average
-        losses = [F.cross_entropy(output, y) for output in model(x)]
-        loss = sum(losses) / len(losses)
+        shares = torch.stack([output.softmax(-1) for output in model(x)]).mean(0)
+        loss = F.nll_loss(shares.log(), y)

#: right: sums over the boxes of each image, divided by what nothing shows
def train(model, loader, optimizer, boxes_of, K=3):
    assert len(loader) % K == 0
    for i, (x, targets) in enumerate(loader, 1):
        losses = [(output - boxes).abs().sum() for output, boxes in zip(model(x), targets)]
        loss = torch.stack(losses).sum() / boxes_of(targets)
        loss.backward()
        if i % K == 0:
            optimizer.step()
            optimizer.zero_grad()

#= GA101: means over the boxes of each image, which take the place of no division by K
-        losses = [(output - boxes).abs().sum() for output, boxes in zip(model(x), targets)]
-        loss = torch.stack(losses).sum() / boxes_of(targets)
+        losses = [(output - boxes).abs().mean() for _, (output, boxes) in enumerate(zip(model(x), targets))]
+        loss = torch.stack(losses).mean()

#= right: means over the boxes of each image, divided
-        losses = [(output - boxes).abs().sum() for output, boxes in zip(model(x), targets)]
-        loss = torch.stack(losses).sum() / boxes_of(targets)
+        losses = [(output - boxes).abs().mean() for output, boxes in zip(model(x), targets) if len(boxes)]
+        loss = torch.stack(losses).mean() / K

## A number of windows that is shown only at the end is no K of theirs.

#: right: a recurrent model's segments
cell, head = nn.GRUCell(1, 11), nn.Linear(11, 1)
optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])
series = torch.sin(0.3 * torch.arange(71).float()[:, None] + torch.rand(3))
hidden, segment, start = torch.zeros(3, 11), 7, 0
while start + segment < 71:
    loss = 0.0
    for t in range(segment):
        hidden = cell(series[start + t].unsqueeze(1), hidden)
        loss = loss + (head(hidden).squeeze(1) - series[start + t + 1]).pow(2).mean()
    loss = loss / segment
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    hidden = hidden.detach()
    start += segment
print("segments:", start // segment)

## Windows that a generator cuts, of as many micro-batches as its options say.

#: right: windows of an unknown number of pieces, divided by their number
parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=4)
parser.add_argument("--pieces", type=int, default=3)
args = parser.parse_args()

def windows(x, y):
    span = args.rows * args.pieces
    for first in range(0, len(x) - span + 1, span):
        yield [(x[first + i :][: args.rows], y[first + i :][: args.rows]) for i in range(0, span, args.rows)]

def update(model, optimizer, window):
    optimizer.zero_grad()
    for x, y in window:
        (F.mse_loss(model(x), y) / len(window)).backward()
    optimizer.step()

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for window in windows(torch.randn(96, 3), torch.randn(96, 1)):
    update(model, optimizer, window)

#= GA101: windows of an unknown number of pieces, and no division
-        (F.mse_loss(model(x), y) / len(window)).backward()
+        F.mse_loss(model(x), y).backward()

#= right: windows of an unknown number of pieces, divided by what the option says
-        (F.mse_loss(model(x), y) / len(window)).backward()
+        (F.mse_loss(model(x), y) / args.pieces).backward()

#: right: losses by name, which a method of the network's class gives, and their mean
class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.size, self.kind = nn.Linear(9, 12), nn.Linear(12, 1), nn.Linear(12, 3)

    def losses(self, x, wanted):
        body = torch.relu(self.body(x))
        return {
            "size": F.mse_loss(self.size(body)[:, 0], wanted["size"]),
            "kind": F.cross_entropy(self.kind(body), wanted["kind"]),
        }

def rows():
    x = torch.randn(4, 9)
    return x, {"size": x[:, 0], "kind": x[:, 2:5].argmax(1)}

net = Tasks()
opt = torch.optim.Adam(net.parameters(), lr=4e-3)
for update in range(6):
    opt.zero_grad()
    for _ in range(2):
        losses = net.losses(*rows())
        (sum(losses.values()) / len(losses) / 2).backward()
    opt.step()

#= GA101: their number is no K, though it is the same
-        (sum(losses.values()) / len(losses) / 2).backward()
+        (sum(losses.values()) / len(losses)).backward()

#= right: what else it gives by name is not followed
-            "kind": F.cross_entropy(self.kind(body), wanted["kind"]),
+            "count": wanted["count"],

## What turns have added to a loss before its only backward are terms: a count of these turns counts them.

#: right: a loss that four turns have added to, and its mean over them
SPAN = 4
cell, top = nn.GRUCell(3, 5), nn.Linear(5, 3)
both = torch.optim.SGD([*cell.parameters(), *top.parameters()], lr=0.1)
waves = torch.sin(0.3 * torch.arange(33).float() + torch.rand(6, 3, 1))
for epoch in range(2):
    state, total = torch.zeros(6, 5), 0.0
    for t in range(waves.size(2) - 1):
        state = cell(waves[:, :, t], state)
        total = total + F.mse_loss(top(state), waves[:, :, t + 1])
        if (t + 1) % SPAN == 0:
            total = total / SPAN
            both.zero_grad()
            total.backward()
            both.step()
            state, total = state.detach(), 0.0

#= right: two terms in each turn, and the mean over turns of their sum
-        total = total + F.mse_loss(top(state), waves[:, :, t + 1])
+        total = total + F.mse_loss(top(state), waves[:, :, t + 1]) + F.l1_loss(top(state), waves[:, :, t + 1])

#= GA304: only the last turn's loss is kept, and what is divided by the count of turns is no sum over them
-        total = total + F.mse_loss(top(state), waves[:, :, t + 1])
+        total = F.mse_loss(top(state), waves[:, :, t + 1])
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_losses_of_what_a_call_gives(loop: LabelledLoop) -> None:
    assert codes_in(HEAD + loop.source) == loop.codes
