"""What a loop makes for itself, and how its passes and streams are counted: data of chance, ends, passes by number."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

net = nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def sounds(count):
    for number in range(count):
        yield torch.sin(2 * math.pi * torch.rand(8, 3))


def windows_of(given, size):
    held = []
    for one in given:
        held.append(one)
        if len(held) == size:
            yield list(held)
            held.clear()
    if held:
        yield held


"""
LOOPS = labelled_loops("""\
## A number ends the only pass over a stream of unknown length
#: right: only losses that are finite are counted, and so many updates are the training
def readings():
    for number in range(1_000_000):
        u = torch.randn(8, 3)
        if number % 7 == 5:
            u[2] = float("nan")
        yield u, u.sum(1, keepdim=True)

good, left = 0, 9
for u, t in readings():
    loss = F.l1_loss(net(u), t)
    if not math.isfinite(loss.item()):
        continue
    (loss / 4).backward()
    good += 1
    if good == 4:
        opt.step()
        opt.zero_grad()
        good = 0
        left -= 1
        if left == 0:
            break

#= right: what chance leaves out is not known, so it may be whole windows
-        good = 0
-        left -= 1
-        if left == 0:
-            break
+        good = 0

#= GA303: bad ones are counted too
-        continue
-    (loss / 4).backward()
+        good += 1
+        continue
+    (loss / 4).backward()

## A stream without an end, and what a count is compared with
#: right: the source counts to 11, and 7 only changes the data
def for_ever():
    number = 0
    while True:
        u = torch.rand(8, 3)
        yield u * 2 if number % 7 == 5 else u
        number += 1

ran = 0
for u in for_ever():
    (F.mse_loss(net(u), u[:, :1]) / 11).backward()
    ran += 1
    if ran == 11:
        opt.step()
        opt.zero_grad()
        ran = 0

#= GA101: as many, and undivided
-    (F.mse_loss(net(u), u[:, :1]) / 11).backward()
+    F.mse_loss(net(u), u[:, :1]).backward()

## A pass of as many turns as a loader has batches, with an iterator
#: right: the counter goes on from one pass to the next
def fit(net, opt, loader, epochs, every):
    ran = 0
    opt.zero_grad()
    for epoch in range(epochs):
        it = iter(loader)
        for _ in range(len(loader)):
            ran += 1
            try:
                u, t = next(it)
            except Exception as problem:
                print(problem)
            (F.mse_loss(net(u), t) / every).backward()
            if ran % every == 0:
                opt.step()
                opt.zero_grad()

#= GA301: it begins anew in each
-        it = iter(loader)
+        it, ran = iter(loader), 0

## Whose branch has the backward
#: GA303: the other branch counts, and has none
for number, u in enumerate(sounds(40)):
    loss = F.mse_loss(net(u), u[:, :1])
    if not torch.isfinite(loss):
        print("skipped", number)
    else:
        (loss / 5).backward()
    if (number + 1) % 5 == 0:
        opt.step()
        opt.zero_grad()

#= right: only what ran is counted
-for number, u in enumerate(sounds(40)):
+ran = 0
+for number, u in enumerate(sounds(40)):

-        (loss / 5).backward()
-    if (number + 1) % 5 == 0:
-        opt.step()
-        opt.zero_grad()
+        (loss / 5).backward()
+        ran += 1
+        if ran % 5 == 0:
+            opt.step()
+            opt.zero_grad()

## How many batches a generator gives
#: right: 20 are 5 windows of 4
for epoch in range(2):
    opt.zero_grad()
    for number, u in enumerate(sounds(20), 1):
        (F.mse_loss(net(u), u[:, :1]) / 4).backward()
        if number % 4 == 0:
            opt.step()
            opt.zero_grad()

#= GA301: 22 are 2 more
-    for number, u in enumerate(sounds(20), 1):
+    for number, u in enumerate(sounds(22), 1):

## Windows that a generator makes of batches
#: GA103: 16 of them by 6, and 6 divides the last window of 4 too
PIECES = 6
for epoch in range(2):
    for held in windows_of(sounds(16), PIECES):
        opt.zero_grad()
        for u in held:
            F.mse_loss(net(u), u[:, :1]).div(PIECES).backward()
        opt.step()

#= right: its own length does
-            F.mse_loss(net(u), u[:, :1]).div(PIECES).backward()
+            F.mse_loss(net(u), u[:, :1]).div(len(held)).backward()

#= right: 18 are whole windows
-    for held in windows_of(sounds(16), PIECES):
+    for held in windows_of(sounds(18), PIECES):

## Data that a function makes of chance
#: GA101: it is given a number, and turns what it has drawn
def turned(rows):
    k = torch.randint(0, 4, (rows,))
    u = torch.stack([torch.rot90(torch.ones(1, 3, 3), int(n), dims=(1, 2)) for n in k])
    return u.flatten(1), k

wide = nn.Linear(9, 4)
other = torch.optim.SGD(wide.parameters(), lr=0.1)
for update in range(8):
    other.zero_grad()
    for _ in range(4):
        u, k = turned(16)
        F.cross_entropy(wide(u), k).backward()
    other.step()

#= right: divided
-        F.cross_entropy(wide(u), k).backward()
+        (F.cross_entropy(wide(u), k) / 4).backward()

#= right: drawn once, its losses are several terms for one batch
-    for _ in range(4):
-        u, k = turned(16)
+    u, k = turned(16)
+    for _ in range(4):

## A draw in a function
#: right: what an iterator has left ends a window, and the loss is a sum
def consume(it, most):
    used = 0
    while used < most:
        try:
            u = next(it)
        except StopIteration:
            break
        (F.mse_loss(net(u), u[:, :1]) / most).backward()
        used += 1
    return used

for epoch in range(3):
    it = sounds(21)
    while True:
        opt.zero_grad()
        if not consume(it, 7):
            break
        opt.step()

#= GA103: 4 of 25 are left for the last window, whose losses are divided by 7 as well
-    it = sounds(21)
+    it = sounds(25)

#= GA101: undivided
-        (F.mse_loss(net(u), u[:, :1]) / most).backward()
+        F.mse_loss(net(u), u[:, :1]).backward()

## How many rows there are
#: right: 128 texts, 8 batches of 16
texts, classes = [], []
for kind in range(4):
    for _ in range(32):
        texts.append([1.0, 2.0, 3.0])
        classes.append([float(kind)])
texts, classes = torch.tensor(texts), torch.tensor(classes)
for epoch in range(2):
    for b, rows in enumerate(torch.randperm(len(texts)).split(16)):
        (F.mse_loss(net(texts[rows]), classes[rows]) / 4).backward()
        if (b + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()

#= GA102: the mean of the 16 rows of a batch, divided by 16
-        (F.mse_loss(net(texts[rows]), classes[rows]) / 4).backward()
+        (F.mse_loss(net(texts[rows]), classes[rows]) / batch_size).backward()

-for epoch in range(2):
+batch_size = 16
+for epoch in range(2):

-    for b, rows in enumerate(torch.randperm(len(texts)).split(16)):
+    for b, rows in enumerate(torch.randperm(len(texts)).split(batch_size)):

#= GA301: 112 texts are 7 batches
-    for _ in range(32):
+    for _ in range(28):

#: right: rows keep their number where other dimensions are exchanged
class Maps(torch.utils.data.Dataset):
    def __init__(self):
        self.maps = torch.randn(60, 3, 5).transpose(1, 2)

    def __len__(self):
        return len(self.maps)

    def __getitem__(self, place):
        return self.maps[place]

for epoch in range(2):
    for b, u in enumerate(DataLoader(Maps(), batch_size=6)):
        (net(u).square().mean() / 2).backward()
        if (b + 1) % 2 == 0:
            opt.step()
            opt.zero_grad()

#= GA301: with the first, they are 18 rows in 3 batches
-        self.maps = torch.randn(60, 3, 5).transpose(1, 2)
+        self.maps = torch.randn(60, 3, 18).transpose(0, 2)

#= right: the first is moved behind the others, and 24 rows are 4 batches
-        self.maps = torch.randn(60, 3, 5).transpose(1, 2)
+        self.maps = torch.randn(60, 24, 5).movedim(0, 2)

## What a model is given without a graph does not show how many rows the loss has
#: right: as many numbers in a place of a game as games in a window
def played(net):
    at, seen = torch.randn(3), []
    while not at.norm() < 0.1:
        with torch.no_grad():
            move = net(at)
        seen.append(at)
        at = at * 0.7 + 0.1 * torch.sign(move)
    return torch.stack(seen)

for game in range(12):
    seen = played(net)
    (net(seen).squeeze(1) - seen.norm(dim=1)).square().sum().backward()
    if game % 3 == 2:
        for weight in net.parameters():
            weight.grad /= 3
        opt.step()
        opt.zero_grad()

#= GA101: the mean over each game's places, undivided
-    (net(seen).squeeze(1) - seen.norm(dim=1)).square().sum().backward()
+    (net(seen).squeeze(1) - seen.norm(dim=1)).square().mean().backward()

-        for weight in net.parameters():
-            weight.grad /= 3
-        opt.step()
+        opt.step()

#= GA101: what has a graph shows it: each loss is a mean over its rows, and undivided
-    seen = played(net)
-    (net(seen).squeeze(1) - seen.norm(dim=1)).square().sum().backward()
+    seen = torch.randn(3, 3)
+    (net(seen).squeeze(1) - seen.norm(dim=1)).square().sum().div(len(seen)).backward()

-        for weight in net.parameters():
-            weight.grad /= 3
-        opt.step()
+        opt.step()
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_what_is_made_and_how_it_is_counted(loop: LabelledLoop) -> None:
    """A finding for each mistake, and none for its look-alike."""
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes
