"""Sizes that the source determines, whether or not the analysis can compute them: no guess about them is a finding."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import itertools
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

net = nn.Linear(6, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


"""
LOOPS = labelled_loops("""\
## Rows that a mask of made data leaves, cut into pieces
#: right: each part of the data leaves whole windows, and who made both knows it
rows = torch.randn(60, 6)
part_of = torch.arange(60) % 3
order = torch.randperm(60)
for part in range(3):
    others = order[part_of != part]
    for n, places in enumerate(others.split(5)):
        (net(rows[places]).square().mean() / 4).backward()
        if (n + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()

#= GA301: a file says how many rows there are
-order = torch.randperm(60)
+order = torch.load(sys.argv[1])

## Several passes in one stream
#: right: four passes of six batches are eight windows of three
loader = DataLoader(torch.randn(48, 6), batch_size=8)
waiting = 0
for u in itertools.chain.from_iterable(loader for _ in range(4)):
    (net(u).square().mean() / 3).backward()
    waiting += 1
    if waiting == 3:
        opt.step()
        opt.zero_grad()
        waiting = 0

#= GA301: four passes of seven leave one
-loader = DataLoader(torch.randn(48, 6), batch_size=8)
+loader = DataLoader(torch.randn(56, 6), batch_size=8)

#= right: as many as make windows, one loader after the other
-for u in itertools.chain.from_iterable(loader for _ in range(4)):
+for u in itertools.chain(loader, DataLoader(torch.randn(36, 6), batch_size=4)):

#= GA301: eleven batches
-for u in itertools.chain.from_iterable(loader for _ in range(4)):
+for u in itertools.chain(loader, DataLoader(torch.randn(20, 6), batch_size=4)):

#= GA301: how many batches they have is not for this file to say
-loader = DataLoader(torch.randn(48, 6), batch_size=8)
+loader = DataLoader(torch.load(sys.argv[1]), batch_size=8)

## Windows of a series
#: right: 64 windows are sixteen batches of four
series = torch.randn(69).unfold(0, 6, 1)
for n, u in enumerate(series.split(4)):
    (net(u).square().mean() / 4).backward()
    if (n + 1) % 4 == 0:
        opt.step()
        opt.zero_grad()

#= GA301: 60 windows are fifteen
-series = torch.randn(69).unfold(0, 6, 1)
+series = torch.randn(65).unfold(0, 6, 1)

#= right: every second one of 133
-series = torch.randn(69).unfold(0, 6, 1)
+series = torch.randn(133).unfold(0, 6, 2)

#= right: along another dimension, it has its rows
-series = torch.randn(69).unfold(0, 6, 1)
+series = torch.randn(48, 9).unfold(1, 6, 1)

## Targets that a loss leaves out
#: right: each micro-batch has one target in each of its rows
criterion = nn.CrossEntropyLoss(ignore_index=-100)

def batch():
    u = torch.randn(5, 7, 6)
    words = torch.randint(0, 3, (5, 7))
    wanted = torch.full_like(words, -100)
    row, column = torch.arange(5), torch.randint(0, 7, (5,))
    wanted[row, column] = words[row, column]
    return u, wanted

for n in range(12):
    u, wanted = batch()
    (criterion(net(u).view(-1, 3), wanted.view(-1)) / 3).backward()
    if (n + 1) % 3 == 0:
        opt.step()
        opt.zero_grad()

#= right: made with its size
-    wanted = torch.full_like(words, -100)
+    wanted = torch.full((5, 7), -100)

#= GA104: as many as chance says
-    wanted[row, column] = words[row, column]
+    chosen = torch.rand(5, 7) < 0.2
+    wanted[chosen] = words[chosen]

#= GA104: as many as chance says, besides one in each row
-    return u, wanted
+    chosen = torch.rand(5, 7) < 0.2
+    wanted[chosen] = words[chosen]
+    return u, wanted

#= GA104: as many as chance says, by the loss's own default
-criterion = nn.CrossEntropyLoss(ignore_index=-100)
-
-def batch():
-    u = torch.randn(5, 7, 6)
-    words = torch.randint(0, 3, (5, 7))
-    wanted = torch.full_like(words, -100)
-    row, column = torch.arange(5), torch.randint(0, 7, (5,))
-    wanted[row, column] = words[row, column]
+criterion = nn.CrossEntropyLoss()
+
+def batch():
+    u = torch.randn(5, 7, 6)
+    words = torch.randint(0, 3, (5, 7))
+    wanted = torch.full_like(words, -100)
+    chosen = torch.rand(5, 7) < 0.2
+    wanted[chosen] = words[chosen]

## A data set that is as long as what it works out of its rows
#: right: one answer for each of 60 rows, and 12 batches of 5 are whole windows
class Answers(torch.utils.data.Dataset):
    def __init__(self, count):
        self.rows = torch.randn(count, 6)
        chosen = torch.randint(0, 6, (count,))
        self.answers = self.rows.gather(1, chosen[:, None])[:, 0].sign()

    def __len__(self):
        return len(self.answers)

    def __getitem__(self, place):
        return self.rows[place], self.answers[place]

for n, (u, v) in enumerate(DataLoader(Answers(60), batch_size=5, shuffle=True), 1):
    (F.mse_loss(net(u).sum(1), v) / 4).backward()
    if n % 4 == 0:
        opt.step()
        opt.zero_grad()

#= right: the largest of each row
-        self.answers = self.rows.gather(1, chosen[:, None])[:, 0].sign()
+        self.answers = self.rows.max(1).values

#= right: one number or another, row by row
-        self.answers = self.rows.gather(1, chosen[:, None])[:, 0].sign()
+        self.answers = torch.where(self.rows[:, 0] > self.rows[:, 1], 1.0, -1.0)

#= GA301: a file says how many answers there are
-        self.answers = self.rows.gather(1, chosen[:, None])[:, 0].sign()
+        self.answers = torch.load(sys.argv[1]).gather(1, chosen[:, None])[:, 0].sign()

#= GA301: and so it does where it chooses them
-        self.answers = self.rows.gather(1, chosen[:, None])[:, 0].sign()
+        self.answers = self.rows.gather(1, torch.load(sys.argv[1]))[:, 0].sign()

#= GA301: 65 rows, of which the sum over each is known
-        self.rows = torch.randn(count, 6)
-        chosen = torch.randint(0, 6, (count,))
-        self.answers = self.rows.gather(1, chosen[:, None])[:, 0].sign()
+        self.rows = torch.randn(count + 5, 6)
+        self.answers = self.rows.sum(1).sign()

## Pieces of an order that the file makes
#: right: a generator takes a pair at a time from twenty places, and ten pairs are whole windows
def pairs(places):
    source = iter(places)
    while True:
        pair = [place for _, place in zip(range(2), source)]
        if not pair:
            return
        yield torch.tensor(pair)

rows = torch.randn(20, 6)
order = torch.randperm(20).tolist()
waiting = []
for places in pairs(order):
    (net(rows[places]).square().mean() / 5).backward()
    waiting.append(places)
    if len(waiting) == 5:
        opt.step()
        opt.zero_grad()
        waiting.clear()

#= GA301: how many places there are is what a file says
-order = torch.randperm(20).tolist()
+order = torch.load(sys.argv[1])
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_sizes_that_the_source_determines(loop: LabelledLoop) -> None:
    """A finding for each mistake, and none for its look-alike."""
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes
