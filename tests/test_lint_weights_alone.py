"""Losses of weights alone, generators of chance, counts that have come to K, and lists that a loop takes its data from.

Every mistake has a loop next to it that looks like it and is right.
"""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

HEAD = """\
import itertools
from collections import deque
import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

"""
LOOPS = labelled_loops("""\
#: right: a decay of the weights before each pass, which is one window
def fit(rounds):
    net, rows = nn.Linear(5, 1), torch.randn(66, 5)
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    blocks = DataLoader(TensorDataset(rows, torch.randn(66, 1)), batch_size=9)
    for _ in range(rounds):
        net.zero_grad()
        decay = 0.05 * sum(w.square().sum() for w in net.parameters())
        decay.backward()
        for u, t in blocks:
            (F.mse_loss(net(u), t, reduction="sum") / len(rows)).backward()
        opt.step()

#: GA301: a decay of the weights right before the step, and a remainder
def fit(rounds):
    net = nn.Linear(5, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    blocks = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(17)]
    for _ in range(rounds):
        for j, (u, t) in enumerate(blocks):
            (F.mse_loss(net(u), t) / 5).backward()
            if j % 5 == 4:
                decay = 0
                for w in net.parameters():
                    decay = decay + torch.norm(w, 2)
                (1e-3 * decay).backward()
                opt.step()
                opt.zero_grad()

#: right: a decay of the weights right before the step
def fit(rounds):
    net = nn.Linear(5, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    blocks = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(15)]
    for _ in range(rounds):
        for j, (u, t) in enumerate(blocks):
            (F.mse_loss(net(u), t) / 5).backward()
            if j % 5 == 4:
                torch.stack([w.abs().sum() for w in net.parameters()]).sum().mul(1e-4).backward()
                opt.step()
                opt.zero_grad()

#: GA301: a loss of weights and of data is a micro-batch's
def fit(rounds):
    net = nn.Linear(5, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    blocks = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(17)]
    for _ in range(rounds):
        for j, (u, t) in enumerate(blocks):
            decay = sum(w.square().sum() for w in net.parameters())
            ((F.mse_loss(net(u), t) + 0.01 * decay) / 5).backward()
            if j % 5 == 4:
                opt.step()
                opt.zero_grad()

#: GA102: a count that has come to K, in an object, of data that a function draws with a generator
class Gatherer:
    def __init__(self, net, opt, most):
        self.net, self.opt, self.most, self.held = net, opt, most, 0

    def take(self, loss):
        loss.backward()
        self.held += 1
        if self.held == self.most:
            self.close()

    def close(self):
        for w in self.net.parameters():
            w.grad /= self.held
        self.opt.step()
        self.opt.zero_grad()
        self.held = 0

def waves(rows, chance):
    at = torch.rand(rows, 1, generator=chance) * 6
    return torch.cat([at.sin(), at.cos()], 1), at.sin() * 2

def fit(parts=4, rows=7, turns=24):
    chance = torch.Generator().manual_seed(3)
    net = nn.Linear(2, 1)
    gatherer = Gatherer(net, torch.optim.SGD(net.parameters(), lr=0.1), parts)
    for _ in range(turns):
        u, t = waves(rows, chance)
        gatherer.take(F.mse_loss(net(u), t) / parts)

#: right: the same count divides once
class Gatherer:
    def __init__(self, net, opt, most):
        self.net, self.opt, self.most, self.held = net, opt, most, 0

    def take(self, loss):
        loss.backward()
        self.held += 1
        if self.held == self.most:
            self.close()

    def close(self):
        for w in self.net.parameters():
            w.grad /= self.held
        self.opt.step()
        self.opt.zero_grad()
        self.held = 0

def waves(rows, chance):
    at = torch.rand(rows, 1, generator=chance) * 6
    return torch.cat([at.sin(), at.cos()], 1), at.sin() * 2

def fit(parts=4, rows=7, turns=24):
    chance = torch.Generator().manual_seed(3)
    net = nn.Linear(2, 1)
    gatherer = Gatherer(net, torch.optim.SGD(net.parameters(), lr=0.1), parts)
    for _ in range(turns):
        u, t = waves(rows, chance)
        gatherer.take(F.mse_loss(net(u), t))

#: GA101 GA301: taken out of a list, one after the other
net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.02)
waiting = deque((torch.randn(6, 5), torch.randn(6, 1)) for _ in range(17))
ran = 0
while waiting:
    u, t = waiting.popleft()
    F.mse_loss(net(u), t).backward()
    ran += 1
    if ran % 5 == 0:
        opt.step()
        opt.zero_grad()

#: right: taken out of a list, whole windows
net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.02)
waiting = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(15)]
ran = 0
while waiting:
    u, t = waiting.pop(0)
    (F.mse_loss(net(u), t) / 5).backward()
    ran += 1
    if ran % 5 == 0:
        opt.step()
        opt.zero_grad()

#: GA303: an error is caught, counted, and the backward is what is done without one
net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.02)
blocks = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(15)]
ran = 0
for u, t in blocks:
    ran += 1
    try:
        loss = F.mse_loss(net(u), t)
    except RuntimeError:
        print("left out")
    else:
        (loss / 5).backward()
    if ran == 5:
        opt.step()
        opt.zero_grad()
        ran = 0

#: right: an error is caught, and only what has run is counted
net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.02)
blocks = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(15)]
ran = 0
for u, t in blocks:
    try:
        loss = F.mse_loss(net(u), t)
    except RuntimeError:
        print("left out")
    else:
        (loss / 5).backward()
        ran += 1
        if ran == 5:
            opt.step()
            opt.zero_grad()
            ran = 0

#: GA301: the length of what a generator gave, of rows that are as many as K
def visits(count, rows):
    for _ in range(count):
        u = torch.randn(rows, 5)
        yield u, u[:, :1]

def fit(rounds=2):
    net = nn.Linear(5, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    days = list(visits(17, 5))
    ran = 0
    for _ in range(rounds):
        total = 0.0
        for u, t in days:
            loss = F.mse_loss(net(u), t)
            (loss / 5).backward()
            total += loss.item()
            ran += 1
            if ran % 5 == 0:
                opt.step()
                opt.zero_grad()
        print(total / len(days))

fit()

#: right: the length of what a generator gave is that of whole windows
def visits(count, rows):
    for _ in range(count):
        u = torch.randn(rows, 5)
        yield u, u[:, :1]

def fit(rounds=2):
    net = nn.Linear(5, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    days = list(visits(15, 5))
    ran = 0
    for _ in range(rounds):
        total = 0.0
        for u, t in days:
            loss = F.mse_loss(net(u), t)
            (loss / 5).backward()
            total += loss.item()
            ran += 1
            if ran % 5 == 0:
                opt.step()
                opt.zero_grad()
        print(total / len(days))

fit()

#: GA103: a number of batches of a stream without an end
def endless():
    while True:
        u = torch.randn(6, 5)
        yield u, u[:, :1]

net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.02)
ran = 0
for u, t in itertools.islice(endless(), 17):
    (F.mse_loss(net(u), t) / 5).backward()
    ran += 1
    if ran == 5:
        opt.step()
        opt.zero_grad()
        ran = 0
if ran:
    opt.step()

#: right: as many as whole windows of a stream without an end
def endless():
    while True:
        u = torch.randn(6, 5)
        yield u, u[:, :1]

net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.02)
ran = 0
for u, t in itertools.islice(endless(), 15):
    (F.mse_loss(net(u), t) / 5).backward()
    ran += 1
    if ran == 5:
        opt.step()
        opt.zero_grad()
        ran = 0

#: right: two networks with names are cleared as one list
left, right = nn.Linear(5, 4), nn.Linear(4, 1)
pair = nn.ModuleList([left, right])
opts = [torch.optim.SGD(left.parameters(), lr=0.1), torch.optim.Adam(right.parameters(), lr=0.01)]
for _ in range(20):
    pair.zero_grad()
    for _ in range(3):
        (F.mse_loss(right(left(torch.randn(6, 5))), torch.randn(6, 1)) / 3).backward()
    for one in opts:
        one.step()

#: GA204: the list that is cleared lacks one of the two
left, right = nn.Linear(5, 4), nn.Linear(4, 1)
pair = nn.ModuleList([right])
opts = [torch.optim.SGD(left.parameters(), lr=0.1), torch.optim.Adam(right.parameters(), lr=0.01)]
for _ in range(20):
    pair.zero_grad()
    for _ in range(3):
        (F.mse_loss(right(left(torch.randn(6, 5))), torch.randn(6, 1)) / 3).backward()
    for one in opts:
        one.step()

#: right: two networks with names are cleared as one dictionary
left, right = nn.Linear(5, 4), nn.Linear(4, 1)
pair = nn.ModuleDict({"left": left, "right": right})
opts = [torch.optim.SGD(left.parameters(), lr=0.1), torch.optim.Adam(pair["right"].parameters(), lr=0.01)]
for _ in range(20):
    pair.zero_grad()
    for _ in range(3):
        (F.mse_loss(pair["right"](left(torch.randn(6, 5))), torch.randn(6, 1)) / 3).backward()
    for one in opts:
        one.step()

#= GA204: the dictionary that is cleared lacks one of the two
-pair = nn.ModuleDict({"left": left, "right": right})
+pair = nn.ModuleDict({"right": right})

#= right: each of its networks is cleared by itself
-    pair.zero_grad()
+    for one in pair.values():
+        one.zero_grad()

#: right: hooks on all that a dictionary of networks has divide what its members make
parts = nn.ModuleDict({"body": nn.Linear(5, 4), "top": nn.Linear(4, 1)})
opt = torch.optim.SGD(parts.parameters(), lr=0.1)
for weight in parts.parameters():
    weight.register_hook(lambda grad: grad / 3)
for _ in range(20):
    for _ in range(3):
        F.mse_loss(parts["top"](parts["body"](torch.randn(6, 5))), torch.randn(6, 1)).backward()
    opt.step()
    opt.zero_grad()

#= GA101: the hooks are on another network
-for weight in parts.parameters():
+for weight in nn.Linear(5, 4).parameters():
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_a_loop_is_read_as_it_was_meant(loop: LabelledLoop) -> None:
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes


AROUND = """\
net = DistributedDataParallel(nn.Linear(5, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.02)
blocks = [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(15)]
for j, (u, t) in enumerate(blocks):
    {run}
    if j % 5 == 4:
        opt.step()
        opt.zero_grad()
"""
PAST_IT = "(F.mse_loss(net.module(u), t) / 5).backward()"
LOCAL = """with net.no_sync():
        (F.mse_loss(net(u), t) / 5).backward()"""


@pytest.mark.parametrize(("run", "advice"), [(PAST_IT, ".module"), (LOCAL, "no_sync()")])
def test_the_advice_names_what_has_kept_gradients_local(run: str, advice: str) -> None:
    found = [f for f in lint_source(HEAD + AROUND.format(run=run), "train.py") if f.mistake.code == "GA702"]

    assert [[word in f.help for word in (".module", "no_sync()")] for f in found] == [
        [advice == ".module", advice == "no_sync()"]
    ]
