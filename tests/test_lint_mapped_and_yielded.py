"""What ``map`` calls, what generators of the file yield, and what the batches of data that the file makes hold."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import sys
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

net = nn.Linear(6, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


"""
LOOPS = labelled_loops("""\
## Micro-batches that a function makes of numbers
#: right: twenty are five windows of four
def made(seed):
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(5, 6, generator=chance)

for n, rows in enumerate(map(made, range(20))):
    (net(rows).square().mean() / 4).backward()
    if (n + 1) % 4 == 0:
        opt.step()
        opt.zero_grad()

#= GA301: twenty-one leave one
-for n, rows in enumerate(map(made, range(20))):
+for n, rows in enumerate(map(made, range(21))):

#= right: two series at once end with the shorter one
-def made(seed):
+def made(seed, other):

-for n, rows in enumerate(map(made, range(20))):
+for n, rows in enumerate(map(made, range(20), range(90))):

#= GA301: and so does what that leaves
-def made(seed):
+def made(seed, other):

-for n, rows in enumerate(map(made, range(20))):
+for n, rows in enumerate(map(made, range(90), range(21))):

## A function that runs backward, called by map
#: GA203: nothing clears what the window before has left
def share(parts, rows):
    loss = net(rows).square().mean() / parts
    loss.backward()
    return loss.item()

run = partial(share, 3)
for big in torch.randn(60, 6).split(15):
    shown = sum(map(lambda rows: share(3, rows), big.chunk(3)))
    opt.step()

#= right: each window begins with nothing
-    opt.step()
+    opt.step()
+    opt.zero_grad()

#= GA101: each part has the weight of the whole
-    opt.step()
+    opt.step()
+    opt.zero_grad()

-    loss = net(rows).square().mean() / parts
+    loss = net(rows).square().mean()

## A generator that leaves some out
#: right: how many it yields follows from what the file shows, whoever counts it
def whole(count):
    for n in range(count):
        rows = torch.randn(5, 6)
        if n % 7 == 2:
            rows[1, 1] = float("nan")
        yield rows

def finite(batches):
    for rows in batches:
        if torch.isfinite(rows).all():
            yield rows

for n, rows in enumerate(finite(whole(28))):
    (net(rows).square().mean() / 4).backward()
    if (n + 1) % 4 == 0:
        opt.step()
        opt.zero_grad()

#= GA301: how many there are is what the command line says
-for n, rows in enumerate(finite(whole(28))):
+for n, rows in enumerate(finite(whole(int(sys.argv[1])))):

#= GA301: what each holds is what a file says
-        rows = torch.randn(5, 6)
+        rows = torch.load(f"{n}.pt")

#= GA301: so it is where another function reads it
-def finite(batches):
+def read(n):
+    return torch.load(f"{n}.pt")
+
+def finite(batches):

-        rows = torch.randn(5, 6)
+        rows = read(n)

## An error before the backward
#: right: how many were left out is not known, and the count leaves them out too
good = 0
for rows in torch.randn(45, 6).split(3):
    try:
        loss = net(rows).square().mean() / 4
    except RuntimeError:
        continue
    loss.backward()
    good += 1
    if good % 4 == 0:
        opt.step()
        opt.zero_grad()

#= GA301: an error ends the training
-        continue
+        raise

#= GA303: what is left out is counted
-    loss.backward()
-    good += 1
+    loss.backward()

-    try:
+    good += 1
+    try:

-for rows in torch.randn(45, 6).split(3):
+for rows in torch.randn(48, 6).split(3):

## Rows that a choice of rows is added to
#: right: who draws as many numbers as there are rows knows how many batches that makes
kinds = torch.multinomial(torch.tensor([0.5, 0.25, 0.25]), 96, replacement=True)
rows = torch.randn(96, 6) + torch.randn(3, 6)[kinds]
waiting = 0
for x, kind in DataLoader(TensorDataset(rows, kinds), batch_size=4):
    (F.cross_entropy(net(x), kind) / 4).backward()
    waiting += 1
    if waiting == 4:
        opt.step()
        opt.zero_grad()
        waiting = 0

## Masks in the batches of a data set
#: right: each row leaves as many out
hidden = torch.ones(96, 3, dtype=torch.bool)
hidden.scatter_(1, torch.rand(96, 3).argsort(1)[:, :1], False)
for n, (x, m) in enumerate(DataLoader(TensorDataset(torch.randn(96, 6), hidden), batch_size=4)):
    ((net(x).square() * m).sum() / m.sum() / 4).backward()
    if (n + 1) % 4 == 0:
        opt.step()
        opt.zero_grad()

#= GA104: each row leaves some out
-hidden = torch.ones(96, 3, dtype=torch.bool)
-hidden.scatter_(1, torch.rand(96, 3).argsort(1)[:, :1], False)
+hidden = torch.rand(96, 3) < 0.5

## Class weights
#: GA104: each mean counts the weights of its own targets
criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]))
for n, (x, kind) in enumerate(DataLoader(TensorDataset(torch.randn(96, 6), torch.randint(3, (96,))), batch_size=4)):
    (criterion(net(x), kind) / 4).backward()
    if (n + 1) % 4 == 0:
        opt.step()
        opt.zero_grad()

#= GA104: the same, by the function
-    (criterion(net(x), kind) / 4).backward()
+    (F.cross_entropy(net(x), kind, torch.tensor([0.2, 1.0, 3.0])) / 4).backward()

#= right: all classes weigh as much
-criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]))
+criterion = nn.CrossEntropyLoss(weight=torch.tensor([2.0, 2.0, 2.0]))

#= right: whether there are weights is not known
-criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]))
+criterion = nn.CrossEntropyLoss(weight=settings.get("weight"))

#= right: none
-criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]))
+criterion = nn.CrossEntropyLoss(weight=None)

#= right: this loss counts each place once, whatever it weighs
-criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]))
+criterion = nn.BCEWithLogitsLoss(weight=torch.tensor([0.2, 1.0, 3.0]))

## Places that were drawn by chance, in a list
#: GA401: each micro-batch is clipped
text = torch.randn(400, 6)
for _ in range(12):
    for _ in range(3):
        begins = torch.randint(0, 390, (5,))
        rows = torch.stack([text[place:place + 9] for place in begins.tolist()])
        (net(rows).square().mean() / 3).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    opt.step()
    opt.zero_grad()

#= right: the whole window is
-        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
+    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_what_is_mapped_yielded_and_held(loop: LabelledLoop) -> None:
    """A finding for each mistake, and none for its look-alike."""
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes
