"""Backwards that are undone, pieces that are uneven, and what a generator, a quotient and a sum of losses tell."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import dataclasses

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

"""
LOOPS = labelled_loops("""\
## Adversarial steps inside a loop over the data
#: GA202: the steps clear what the window had gathered
def fit(net, opt, batches, K, tries):
    for i, (x, y) in enumerate(batches):
        (F.cross_entropy(net(x), y) / K).backward()
        if (i + 1) % K == 0 or i + 1 == len(batches):
            for _ in range(tries):
                worst = F.cross_entropy(net(x), y)
                opt.zero_grad()
                worst.backward()
            opt.step()
            opt.zero_grad()

#= GA202: as many as the source says
-            for _ in range(tries):
+            for _ in range(3):

#= right: each micro-batch is a window
-        (F.cross_entropy(net(x), y) / K).backward()
-        if (i + 1) % K == 0 or i + 1 == len(batches):
+        F.cross_entropy(net(x), y).backward()
+        if net is not None:

#= right: they are added to what was gathered
-                opt.zero_grad()
-                worst.backward()
+                (worst / K).backward()

-        (F.cross_entropy(net(x), y) / K).backward()
-        if (i + 1) % K == 0 or i + 1 == len(batches):
+        F.cross_entropy(net(x), y).backward()
+        if net is not None:

#: GA103: what is put back by hand is lost for no window, and its scale not known
def fit(net, opt, batches, K, tries):
    for i, (x, y) in enumerate(batches):
        (F.cross_entropy(net(x), y) / K).backward()
        if (i + 1) % K == 0 or i + 1 == len(batches):
            opt.step()
            opt.zero_grad()

#= right: gradients that were kept are put back
-            opt.step()
+            kept = {name: p.grad.clone() for name, p in net.named_parameters()}
+            for attempt in range(tries):
+                worst = F.cross_entropy(net(x), y)
+                opt.zero_grad()
+                worst.backward()
+            for name, p in net.named_parameters():
+                p.grad = kept[name]
+            opt.step()

## Pieces of one size, and what is left
#: GA104: four, four and two rows count alike
net = nn.Linear(6, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.randn(80, 6), torch.randint(3, (80,))), batch_size=10):
    opt.zero_grad()
    parts = list(zip(x.split(4), y.split(4)))
    for a, b in parts:
        (F.cross_entropy(net(a), b) / len(parts)).backward()
    opt.step()

#= right: each counts its rows
-        (F.cross_entropy(net(a), b) / len(parts)).backward()
+        (F.cross_entropy(net(a), b) * (len(a) / len(x))).backward()

#= right: sums over all of the batch
-        (F.cross_entropy(net(a), b) / len(parts)).backward()
+        (F.cross_entropy(net(a), b, reduction="sum") / len(x)).backward()

#= right: the gradients of a whole batch, kept and taken apart with it
-    for a, b in parts:
-        (F.cross_entropy(net(a), b) / len(parts)).backward()
+    with torch.no_grad():
+        found = torch.cat([net(a) for a, b in parts])
+    leaf = found.requires_grad_()
+    F.cross_entropy(leaf, y).backward()
+    for (a, b), own in zip(parts, leaf.grad.split(4)):
+        torch.dot(net(a).flatten(), own.flatten()).backward()

#= right: a term at a place that the source writes has none of the rows
-        (F.cross_entropy(net(a), b) / len(parts)).backward()
+        edge = net(torch.zeros(1, 6)).pow(2).mean() / len(parts)
+        (F.cross_entropy(net(a), b) * (len(a) / len(x)) + edge).backward()

#= GA101: but counts once for each piece
-        (F.cross_entropy(net(a), b) / len(parts)).backward()
+        edge = net(torch.zeros(1, 6)).pow(2).mean()
+        (F.cross_entropy(net(a), b) * (len(a) / len(x)) + edge).backward()

#= right: five and five rows are alike
-    parts = list(zip(x.split(4), y.split(4)))
+    parts = list(zip(x.split(5), y.split(5)))

#= GA104: three chunks of ten rows have four, four and two
-    parts = list(zip(x.split(4), y.split(4)))
+    parts = list(zip(x.chunk(3), y.chunk(3)))

#= GA104: as a function
-    parts = list(zip(x.split(4), y.split(4)))
+    parts = list(zip(torch.chunk(x, 3), torch.chunk(y, 3)))

#= right: how many rows are split is not shown
-for x, y in DataLoader(TensorDataset(torch.randn(80, 6), torch.randint(3, (80,))), batch_size=10):
+for x, y in DataLoader(TensorDataset(*torch.load("rows.pt")), batch_size=int(input())):

#= right: how many there are is a setting, by which a number is divided that is not shown
-for x, y in DataLoader(TensorDataset(torch.randn(80, 6), torch.randint(3, (80,))), batch_size=10):
+import config as args
+for x, y in DataLoader(TensorDataset(*torch.load("rows.pt")), batch_size=args.batch_size):

-    parts = list(zip(x.split(4), y.split(4)))
-    for a, b in parts:
-        (F.cross_entropy(net(a), b) / len(parts)).backward()
+    few = args.batch_size // args.accumulation_steps
+    for a, b in zip(x.split(few), y.split(few)):
+        (F.cross_entropy(net(a), b) / args.accumulation_steps).backward()

#= GA104: entries of a dictionary by their names
-    parts = list(zip(x.split(4), y.split(4)))
-    for a, b in parts:
-        (F.cross_entropy(net(a), b) / len(parts)).backward()
+    whole = {"rows": x, "kinds": y}
+    parts = [dict(zip(whole, each)) for each in zip(*(one.split(4) for one in whole.values()))]
+    for part in parts:
+        (F.cross_entropy(net(part["rows"]), part["kinds"]) / len(parts)).backward()

#: GA104: rows that a part of shuffled places chooses
net = nn.Linear(6, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
rows, kinds = torch.randn(80, 6), torch.randint(3, (80,))
order = torch.randperm(80)
for begin in range(0, 80, 10):
    own = order[begin:begin + 10]
    x, y = rows[own], kinds[own]
    opt.zero_grad()
    for a, b in zip(x.chunk(3), y.chunk(3)):
        (F.cross_entropy(net(a), b) / 3).backward()
    opt.step()

#= right: alike
-    for a, b in zip(x.chunk(3), y.chunk(3)):
-        (F.cross_entropy(net(a), b) / 3).backward()
+    for a, b in zip(x.chunk(5), y.chunk(5)):
+        (F.cross_entropy(net(a), b) / 5).backward()

#= right: a share of a sum that grows is no division
-    for a, b in zip(x.chunk(3), y.chunk(3)):
-        (F.cross_entropy(net(a), b) / 3).backward()
+    for a in x.split(4):
+        ((net(a) * ((begin // 10 + 1) / 8)).sum() / len(x)).backward()

## Two networks of two windows, and one loss
#: right: what the slow one has is divided by its own number
quick, slow = nn.Linear(6, 3), nn.Linear(6, 3)
often = torch.optim.SGD(quick.parameters(), lr=0.1)
seldom = torch.optim.SGD(slow.parameters(), lr=0.1)
NEAR, FAR = 2, 6
for i, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(96, 6), torch.randint(3, (96,))), batch_size=4), 1):
    ((F.cross_entropy(quick(x), y) + F.cross_entropy(slow(x), y)) / NEAR).backward()
    if i % NEAR == 0:
        often.step()
        often.zero_grad()
    if i % FAR == 0:
        for p in slow.parameters():
            p.grad *= NEAR / FAR
        seldom.step()
        seldom.zero_grad()

#= right: put back once they were multiplied
-            p.grad *= NEAR / FAR
+            p.grad = p.grad * (NEAR / FAR)

#= GA101: nothing is
-            p.grad *= NEAR / FAR
+            pass

## A generator that says where it is
#: right: it is somewhere else in each turn
class Guide:
    def __init__(self, net, opt, every):
        self.net, self.opt, self.every = net, opt, every
        self.place = self.number = 0

    def batches(self, loader):
        self.number = len(loader)
        for self.place, batch in enumerate(loader):
            yield batch

    def step(self):
        if (self.place + 1) % self.every == 0 or self.place + 1 == self.number:
            self.opt.step()
            self.opt.zero_grad()

net = nn.Linear(6, 3)
guide = Guide(net, torch.optim.SGD(net.parameters(), lr=0.1), 4)
for x, y in guide.batches(DataLoader(TensorDataset(torch.randn(96, 6), torch.randint(3, (96,))), batch_size=4)):
    (F.cross_entropy(net(x), y) / 4).backward()
    guide.step()

#= GA101: what the loop itself counts is known
-        for self.place, batch in enumerate(loader):
-            yield batch
+        yield from loader

-        if (self.place + 1) % self.every == 0 or self.place + 1 == self.number:
+        self.place += 1
+        if self.place % self.every == 0:

-    (F.cross_entropy(net(x), y) / 4).backward()
+    F.cross_entropy(net(x), y).backward()

## Losses that are held for several windows
#: GA801: until a report
net = nn.Linear(6, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
shown = torch.tensor(0.0)
for i, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(960, 6), torch.randint(3, (960,))), batch_size=4), 1):
    loss = F.cross_entropy(net(x), y) / 4
    shown += loss
    loss.backward()
    if i % 4 == 0:
        opt.step()
        opt.zero_grad()
    if i % 24 == 0:
        print(shown.item() / 6)
        shown = torch.tensor(0.0)

#= right: a report of each window
-    if i % 24 == 0:
-        print(shown.item() / 6)
+    if i % 4 == 0:
+        print(shown.item())

#= right: their numbers
-    shown += loss
+    shown += loss.detach()

## Objects with fields
#: GA101: the second has windows that losses are not divided for
@dataclasses.dataclass
class Phase:
    rate: float
    every: int

def undivided(every):
    def run(loss):
        (loss / every).backward()
    return run

net = nn.Linear(6, 3)
phases = [Phase(0.1, 2), Phase(0.01, 4)]
run = undivided(phases[0].every)
loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.randint(3, (64,))), batch_size=4)
for phase in phases:
    opt = torch.optim.SGD(net.parameters(), lr=phase.rate)
    for i, (x, y) in enumerate(loader, 1):
        run(F.cross_entropy(net(x), y))
        if i % phase.every == 0:
            opt.step()
            opt.zero_grad()

#= right: each is divided for its own
-for phase in phases:
+for phase in phases:
+    run = undivided(phase.every)
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_undone_and_uneven(loop: LabelledLoop) -> None:
    """A finding for each mistake, and none for its look-alike."""
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes
