"""Values that a source leaves open, as loops in our own words: each mistake with a right loop that looks like it."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import argparse
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

"""
LOOPS = labelled_loops("""\
## what is made of each tensor of a batch is a batch, also of the last and shorter one
#: GA103: tensors of a batch, one by one
def fit(net, rows, opt, cfg):
    dl = DataLoader(rows, batch_size=cfg.batch_size)
    for n, batch in enumerate(dl, 1):
        batch = [part.cuda() for part in batch]
        (F.mse_loss(net(*batch[:-1]), batch[-1]) / cfg.accum_steps).backward()
        if n % cfg.accum_steps == 0 or n == len(dl):
            opt.step()
            opt.zero_grad()

#= right: tensors of a batch, one by one
     dl = DataLoader(rows, batch_size=cfg.batch_size)
+    left = len(dl) % cfg.accum_steps

-        (F.mse_loss(net(*batch[:-1]), batch[-1]) / cfg.accum_steps).backward()
+        held = left if n > len(dl) - left else cfg.accum_steps
+        (F.mse_loss(net(*batch[:-1]), batch[-1]) / held).backward()

## a loss is taken for a mean, and so is what it says of itself
#: GA103: a loss that is asked for its reduction
class Learner:
    def __init__(self, net, criterion, opt, every):
        self.net, self.criterion, self.opt, self.every = net, criterion, opt, every

    def fit(self, dl):
        for n, (u, t) in enumerate(dl, 1):
            err = self.criterion(self.net(u), t)
            if self.criterion.reduction == "mean":
                err = err / self.every
            err.backward()
            if n % self.every == 0 or n == len(dl):
                self.opt.step()
                self.opt.zero_grad()

#: right: a loss that says that it is a sum
def fit(net, dl, opt, every):
    criterion = nn.MSELoss(reduction="sum")
    for n, (u, t) in enumerate(dl, 1):
        err = criterion(net(u), t)
        if criterion.reduction == "mean":
            err = err / every
        err.backward()
        if n % every == 0 or n == len(dl):
            opt.step()
            opt.zero_grad()

#: right: a setting that is called a reduction
def fit(net, dl, opt, args):
    for n, (u, t) in enumerate(dl, 1):
        err = F.mse_loss(net(u), t, reduction=args.reduction)
        if args.reduction == "mean":
            err = err / args.every
        err.backward()
        if n % args.every == 0:
            opt.step()
            opt.zero_grad()
    assert len(dl) % args.every == 0

## how many tensors a batch has
#: GA301: a batch of two tensors or of three
def fit(net, dl, opt, every):
    for n, batch in enumerate(dl, 1):
        if len(batch) == 3:
            u, t, mask = batch
        elif len(batch) == 2:
            u, t = batch
        else:
            raise ValueError("neither two nor three")
        (F.mse_loss(net(u), t) / every).backward()
        if n % every == 0:
            opt.step()
            opt.zero_grad()

#= right: a batch of two tensors or of three
 def fit(net, dl, opt, every):
+    assert len(dl) % every == 0

## a number of windows is made of two settings
#: GA302: counts begin anew after so many windows
def fit(net, stream, opt, args):
    seen = 0
    for turn in range(args.turns):
        u, t = next(stream)
        (F.mse_loss(net(u), t) / args.every).backward()
        seen += 1
        if (seen + 1) % args.every == 0:
            opt.step()
            opt.zero_grad()
        if (turn + 1) % (args.report * args.every) == 0:
            seen = 0

#= right: counts begin anew after so many windows
-        if (seen + 1) % args.every == 0:
+        if seen % args.every == 0:

## training ends after so many steps
#: GA301: a step too many epochs
def main(net, dl, opt, args):
    done = 0
    for epoch in range(args.epochs):
        for n, (u, t) in enumerate(dl, 1):
            if done >= args.most:
                break
            (F.mse_loss(net(u), t) / args.every).backward()
            if n % args.every == 0:
                opt.step()
                opt.zero_grad()
                done += 1

#: right: the only pass ends after so many steps
net, opt, dl, args = make()
done = 0
for n, (u, t) in enumerate(dl, 1):
    if done >= args.most:
        break
    (F.mse_loss(net(u), t) / args.every).backward()
    if n % args.every == 0:
        opt.step()
        opt.zero_grad()
        done += 1

#= GA301: the only pass ends after so many micro-batches
     (F.mse_loss(net(u), t) / args.every).backward()
+    done += 1

-        done += 1

## a generator that passes on what another one yields
#: GA101: a generator of an endless one
def pairs(rows):
    while True:
        for row in shuffled(rows):
            yield row

def batches(rows, size):
    held = []
    for row in pairs(rows):
        held.append(row)
        if len(held) == size:
            yield torch.stack(held)
            held = []

def fit(net, rows, opt, every):
    for n, u in enumerate(batches(rows, 5), 1):
        F.mse_loss(net(u), u).backward()
        if n % every == 0:
            opt.step()
            opt.zero_grad()

#= GA101 GA301: a generator of one that ends
-    while True:
-        for row in shuffled(rows):
-            yield row
+    for row in shuffled(rows):
+        yield row

## a model's method gives the sums that its class computes
#: GA101: a method of a model that computes means
class Net(nn.Module):
    def plain(self, u, t):
        return F.cross_entropy(self.layer(u), t)

def fit(dl, every):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    assert len(dl) % every == 0
    run = net.plain
    for n, (u, t) in enumerate(dl, 1):
        run(u, t).backward()
        if n % every == 0:
            opt.step()
            opt.zero_grad()

#= right: a method of a model that computes sums
-        return F.cross_entropy(self.layer(u), t)
+        return F.cross_entropy(self.layer(u), t, reduction="sum")

## a class of schedules is no class of optimizers: it has no gradients that anybody has to clear
#: GA204: an optimizer of the file's own
from torch.optim import SGD

class Slow(SGD):
    def __init__(self, parameters, turns):
        super().__init__(parameters, lr=1 / turns)

def fit(net, head, dl, every):
    opt, slow = torch.optim.SGD(net.parameters(), lr=0.1), Slow(head.parameters(), 40)
    assert len(dl) % every == 0
    for n, (u, t) in enumerate(dl, 1):
        (F.mse_loss(head(net(u)), t) / every).backward()
        if n % every == 0:
            slow.step()
            opt.step()
            opt.zero_grad()

#: right: a schedule of the file's own
from torch.optim.lr_scheduler import LambdaLR

class Warm(LambdaLR):
    def __init__(self, optimizer, turns):
        super().__init__(optimizer, lambda turn: min(1.0, turn / turns))

def fit(net, dl, every):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    warm = Warm(opt, 40)
    assert len(dl) % every == 0
    for n, (u, t) in enumerate(dl, 1):
        (F.mse_loss(net(u), t) / every).backward()
        if n % every == 0:
            warm.step()
            opt.step()
            opt.zero_grad()

## a great number of passes is shown by a few of them
#: GA203: a loop that counts to millions
net = nn.Linear(7, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
turn = 0
while turn < 9_000_000:
    u, t = draw()
    F.mse_loss(net(u), t).backward()
    opt.step()
    turn += 1

#= right: a loop that counts to millions
     u, t = draw()
+    opt.zero_grad()
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_a_loop(loop: LabelledLoop) -> None:
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes
