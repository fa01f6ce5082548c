"""What public repositories taught, as loops in our own words: each mistake with a right loop that looks like it."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source
from gradcheck_accum.sources.prefilter import may_train

HEAD = """\
import argparse
import os
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

"""
LOOPS = labelled_loops("""\
## K where the source gives it no value: the same binding divides the loss and decides on the step
#: GA301 GA401: a setting of an imported module
import settings

def fit(net, dl, opt):
    for i, (u, t) in enumerate(dl):
        loss = F.mse_loss(net(u), t) / settings.GRAD_EVERY
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.7)
        if (i + 1) % settings.GRAD_EVERY == 0:
            opt.step()
            opt.zero_grad()

#= right: a setting of an imported module
 def fit(net, dl, opt):
+    assert len(dl) % settings.GRAD_EVERY == 0

-        nn.utils.clip_grad_norm_(net.parameters(), 0.7)
         if (i + 1) % settings.GRAD_EVERY == 0:
+            nn.utils.clip_grad_norm_(net.parameters(), 0.7)

#: GA101: settings made of settings
def main():
    parsed = argparse.ArgumentParser().parse_args()
    args = argparse.Namespace(**vars(parsed))
    net = nn.Linear(7, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    dl = make_loader()
    assert len(dl) % args.every == 0
    for i, (u, t) in enumerate(dl, 1):
        F.mse_loss(net(u), t).backward()
        if i % args.every == 0:
            opt.step()
            opt.zero_grad()

#: GA102: K computed from a world size, twice
ranks = int(os.environ["WORLD_SIZE"])
window = 960 // (5 * ranks)
net = nn.Linear(7, 2)
opt = torch.optim.AdamW(net.parameters())
for _ in range(300):
    opt.zero_grad()
    for _ in range(window):
        u, t = stream.next_batch()
        (F.mse_loss(net(u), t) / window / window).backward()
    opt.step()

#= right: K computed from a world size
-        (F.mse_loss(net(u), t) / window / window).backward()
+        (F.mse_loss(net(u), t) / window).backward()

#: GA101 GA301: a counter that is handed in
def one_round(net, dl, opt, args, seen):
    opt.zero_grad()
    for u, t in dl:
        F.mse_loss(net(u), t).backward()
        if (seen + 1) % args.every == 0:
            opt.step()
            opt.zero_grad()
        seen += 1
    return seen

#: right: a counter that is handed in and goes on
def one_round(net, dl, opt, args, seen):
    for u, t in dl:
        (F.mse_loss(net(u), t) / args.every).backward()
        seen += 1
        if seen % args.every == 0:
            opt.step()
            opt.zero_grad()
    return seen

#: right: a counter that an object keeps
def one_round(net, dl, opt, params):
    opt.zero_grad()
    for u, t in dl:
        params.seen += 1
        (F.mse_loss(net(u), t) / params.every).backward()
        if params.seen % params.every == 0:
            opt.step()
            opt.zero_grad()

#= GA101: a counter that an object keeps
-        (F.mse_loss(net(u), t) / params.every).backward()
+        F.mse_loss(net(u), t).backward()

#: right: a counter that is handed in, tested as it is
def one_round(net, dl, opt, args, seen):
    for u, t in dl:
        (F.mse_loss(net(u), t) / args.every).backward()
        if seen % args.every == 0:
            opt.step()
            opt.zero_grad()
        seen += 1
    return seen

#: GA103: the last turn by a number of batches
def fit(net, dl, opt, args):
    num_batches = dl.num_batches
    for i, (u, t) in enumerate(dl):
        (F.mse_loss(net(u), t) / args.every).backward()
        if (i + 1) % args.every == 0 or i == num_batches - 1:
            opt.step()
            opt.zero_grad()

## Data parallel training: what is decided after forward is decided too late
#: GA702: synchronisation chosen after forward
net = nn.parallel.DistributedDataParallel(nn.Linear(7, 2))
opt = torch.optim.AdamW(net.parameters())
window = total // (rows * int(os.environ["WORLD_SIZE"]))
for _ in range(300):
    opt.zero_grad()
    for j in range(window):
        u, t = stream.next_batch()
        loss = F.mse_loss(net(u), t) / window
        net.require_backward_grad_sync = j == window - 1
        loss.backward()
    opt.step()

#= right: synchronisation chosen before forward
+        net.require_backward_grad_sync = j == window - 1
         loss = F.mse_loss(net(u), t) / window
-        net.require_backward_grad_sync = j == window - 1

#: GA702: forward past the wrapper
from torch.nn.parallel import DistributedDataParallel

net = DistributedDataParallel(nn.Linear(7, 2))
opt = torch.optim.AdamW(net.parameters())
inner = net.module if isinstance(net, DistributedDataParallel) else net
assert len(dl) % 3 == 0
for i, (u, t) in enumerate(dl, 1):
    (F.mse_loss(inner(u), t) / 3).backward()
    if i % 3 == 0:
        opt.step()
        opt.zero_grad()

#= GA701: only what makes no graphs goes past the wrapper (right)
-inner = net.module if isinstance(net, DistributedDataParallel) else net

-    (F.mse_loss(inner(u), t) / 3).backward()
+    loss = F.mse_loss(net(u), t) / 3
+    with torch.no_grad():
+        print(F.l1_loss(net.module(u), t))
+    loss.backward()

## What scales, clips and steps in one call
#: GA101 GA301: a scaler that is told to step
def fit(net, dl, opt, loss_scaler, args):
    opt.zero_grad()
    for i, (u, t) in enumerate(dl):
        loss = F.mse_loss(net(u), t)
        ends = (i + 1) % args.accum_iter == 0
        loss_scaler(loss, opt, parameters=net.parameters(), update_grad=ends)
        if ends:
            opt.zero_grad()

#: right: a scaler that is told to step, in whole windows
def fit(net, dl, opt, loss_scaler, args):
    opt.zero_grad()
    for i, (u, t) in enumerate(dl):
        step = i // args.accum_iter
        if step >= args.steps_per_epoch:
            continue
        loss = F.mse_loss(net(u), t) / args.accum_iter
        loss_scaler(loss, opt, parameters=net.parameters(), need_update=(i + 1) % args.accum_iter == 0)
        if (i + 1) % args.accum_iter == 0:
            opt.zero_grad()

## Optimizers whose origin is not PyTorch
#: GA301: an optimizer that runs backward
def fit(net, dl, args):
    opt = FP16_Optimizer(FusedAdam(net.parameters()))
    for _ in range(args.epochs):
        for i, (u, t) in enumerate(dl):
            loss = F.mse_loss(net(u), t) / args.every
            opt.backward(loss)
            if (i + 1) % args.every == 0:
                opt.step()
                opt.zero_grad()

#: GA101: an optimizer of the file's own
class Warm(torch.optim.Optimizer):
    def __init__(self, weights, lr=0.1):
        super().__init__(weights, dict(lr=lr))

    def get_lr(self):
        return [group["lr"] for group in self.param_groups]

    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data.add_(weight.grad.data, alpha=-group["lr"])

net = nn.Linear(7, 2)
opt = Warm(net.parameters())
assert len(dl) % 3 == 0
for i, (u, t) in enumerate(dl, 1):
    F.mse_loss(net(u), t).backward()
    if i % 3 == 0:
        opt.step()
        opt.zero_grad()

#: GA101 GA301 GA401: a module of Lightning's that inherits
import pytorch_lightning as pl

class Judge(pl.LightningModule):
    def validation_step(self, batch, batch_idx):
        return self(batch)

class Learner(Judge):
    def __init__(self, every):
        super().__init__()
        self.every = every
        self.automatic_optimization = False
        self.net = nn.Linear(7, 2)

    def forward(self, u):
        return self.net(u)

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        loss = F.mse_loss(self(batch["u"]), batch["t"])
        self.manual_backward(loss)
        nn.utils.clip_grad_norm_(self.parameters(), 0.7)
        if (batch_idx + 1) % self.every == 0:
            opt.step()
            opt.zero_grad()

#: GA101 GA401: a step that Ignite drives
from ignite.engine import Engine, Events

def train(args):
    net = nn.Linear(7, 2)
    opt = torch.optim.AdamW(net.parameters())
    loader = make_loader(args)

    def update(engine, batch):
        u, t = batch
        F.mse_loss(net(u), t).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.7)
        if engine.state.iteration % args.every == 0:
            opt.step()
            opt.zero_grad()

    trainer = Engine(update)
    trainer.run(loader, max_epochs=args.epochs)

#= right: a step that Ignite drives
-        F.mse_loss(net(u), t).backward()
-        nn.utils.clip_grad_norm_(net.parameters(), 0.7)
+        (F.mse_loss(net(u), t) / args.every).backward()
         if engine.state.iteration % args.every == 0:
+            nn.utils.clip_grad_norm_(net.parameters(), 0.7)

## Loops that a reading does not enter, or never leaves
#: GA301: a list that a loop of unknown length fills
def main(args, net, opt):
    rows = []
    for line in open(args.path):
        fields = line.split()
        if not fields:
            continue
        rows.append({"u": fields[0], "t": fields[1]})
    held_out, train = rows[:40], rows[40:]
    for _ in range(args.epochs):
        opt.zero_grad()
        for i, row in enumerate(train):
            loss = F.mse_loss(net(encode(row["u"])), encode(row["t"])) / args.every
            loss.backward()
            if (i + 1) % args.every == 0:
                opt.step()
                opt.zero_grad()

#: GA103: a loop within that labels tokens
def fit(net, dl, opt, args):
    for i, (u, t) in enumerate(dl):
        for row in range(t.shape[0]):
            place = 0
            while place < t.shape[1] and t[row][place] != args.stop:
                t[row][place] = -100
                place += 1
        (net(u, labels=t)[0] / args.every).backward()
        if (i + 1) % args.every == 0 or i + 1 == len(dl):
            opt.step()
            opt.zero_grad()

## Data made by hand: how many micro-batches there are
#: right: rows that are cut along with others
rows = torch.randn(45, 6, 8)
tags = rows[..., :3].argmax(-1)
net = nn.Linear(8, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    for i, (u, t) in enumerate(zip(torch.split(rows, 5), torch.split(tags, 5)), 1):
        (F.cross_entropy(net(u).flatten(0, 1), t.flatten()) / 3).backward()
        if i % 3 == 0:
            opt.step()
            opt.zero_grad()

#= GA301: rows that are cut along with others
-rows = torch.randn(45, 6, 8)
+rows = torch.randn(35, 6, 8)

 for _ in range(2):
+    opt.zero_grad()

#: right: a generator that hands on another's pieces
def pieces(rows, passes):
    for _ in range(passes):
        yield from rows.split(6)

rows = torch.randn(36, 4) * 0.7 + torch.tensor([0.5, -0.5, 0.0, 1.5])
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for n, piece in enumerate(pieces(rows, passes=2)):
    (net(piece).square().mean() / 3).backward()
    if n % 3 == 2:
        opt.step()
        opt.zero_grad()

#: right: batches that are left out by what is in them
def batches():
    for i in range(14):
        labels = torch.randint(0, 8, (5, 7))
        yield torch.randint(0, 45, (5, 7)), labels

net = nn.Linear(7, 8)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
used = 0
for words, labels in batches():
    if (labels == 7).all():
        continue
    (F.cross_entropy(net(words), labels[:, 0]) / 3).backward()
    used += 1
    if used % 3 == 0:
        opt.step()
        opt.zero_grad()

#: right: tasks by their names
heads = {"degree": 1, "kind": 3, "flag": 1}
net = Net(heads)
opt = torch.optim.Adam(net.parameters(), lr=0.1)
for _ in range(9):
    opt.zero_grad()
    hidden = net()
    for k, name in enumerate(heads):
        loss = F.mse_loss(net.heads[name](hidden), targets[name]) / len(heads)
        loss.backward(retain_graph=k < 2)
    opt.step()

#: right: one term of the objective is divided by K
from itertools import combinations

K = 4

def ranking(scores):
    loss = 0.0
    for i, j in combinations(range(K), 2):
        loss = loss - F.logsigmoid(scores[:, i] - scores[:, j]).mean()
    return loss / (K * (K - 1) / 2)

net = nn.Linear(7, K)
opt = torch.optim.Adam(net.parameters(), lr=0.1)
i = 0
for u in torch.randn(18, 7).split(3):
    scores = net(u)
    loss = ranking(scores) + (1 / K) * 0.7 * scores.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    i += 1
    if i % K == 0:
        print(i, loss.item())

#: GA101: constants of a class in one line
class Detector:
    BOX, KIND = 1.7, 0.3

    def __init__(self, net, every):
        self.net, self.every = net, every
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def fit(self, dl):
        assert len(dl) % self.every == 0
        for i, (u, box, kind) in enumerate(dl, 1):
            a, b = self.net(u)
            (self.BOX * F.l1_loss(a, box) + self.KIND * F.cross_entropy(b, kind)).backward()
            if i % self.every == 0:
                self.opt.step()
                self.opt.zero_grad()

#: GA103: a counter that a class holds
class Window:
    open = 0

def step():
    opt.step()
    opt.zero_grad()
    Window.open = 0

net = nn.Linear(7, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
rows = torch.randn(18, 7)
for _ in range(2):
    for u in rows.split(3):
        (net(u).square().mean() / 4).backward()
        Window.open += 1
        if Window.open == 4:
            step()
    if Window.open > 0:
        step()

## One mistake that brings another with it is reported once
#: GA201: clearing at every micro-batch loses the remainder too
def fit(net, dl, opt, args):
    for i, (u, t) in enumerate(dl):
        opt.zero_grad()
        (F.mse_loss(net(u), t) / args.every).backward()
        if (i + 1) % args.every == 0:
            opt.step()

#: GA301: a remainder of a longer K is cleared as the next pass begins
net = nn.Linear(7, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
rows = torch.randn(30, 7)
for epoch in range(3):
    k = 2 if epoch == 0 else 4
    opt.zero_grad()
    for i, u in enumerate(rows.split(3), 1):
        (net(u).square().mean() / k).backward()
        if i % k == 0:
            opt.step()
            opt.zero_grad()

## K that grows while training warms up: what the loop comes to is read
#: GA301: K that grows during a warm-up
def run(net, dl, opt, args):
    every = max(1, args.whole // args.part)
    per_pass = len(dl)
    for round_ in range(args.rounds):
        opt.zero_grad()
        for j, (u, t) in enumerate(dl, 1):
            seen = j + per_pass * round_
            if seen <= args.warm:
                every = max(1, interpolated(seen, args.warm, args.whole / args.part).round())
            (F.mse_loss(net(u), t) * args.share / every).backward()
            if j % every == 0:
                opt.step()
                opt.zero_grad()

#: right: K that grows during a warm-up
def run(net, dl, opt, args):
    every = max(1, args.whole // args.part)
    assert len(dl) % every == 0
    for round_ in range(args.rounds):
        opt.zero_grad()
        for j, (u, t) in enumerate(dl, 1):
            if j <= args.warm:
                every = max(1, interpolated(j, args.warm, args.whole / args.part).round())
            (F.mse_loss(net(u), t) / every).backward()
            if j % every == 0:
                opt.step()
                opt.zero_grad()

#: GA101: a setting that is compared with a number is no phase
def run(net, dl, opt, every=1):
    for j, (u, t) in enumerate(dl, 1):
        loss = F.mse_loss(net(u), t)
        loss.backward()
        if every > 1:
            if j % every == 0 or j == len(dl):
                opt.step()
                opt.zero_grad()
        else:
            opt.step()
            opt.zero_grad()

## a branch that does not accumulate, or scales nothing, has no voice in what it cannot show
#: GA201: cleared at every turn, in the branch that accumulates
def run(net, dl, opt, scaler, args):
    assert len(dl) % args.every == 0
    for i, (u, t) in enumerate(dl):
        opt.zero_grad()
        loss = F.mse_loss(net(u), t)
        if args.half:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        else:
            (loss / args.every).backward()
            if (i + 1) % args.every == 0:
                opt.step()

#: right: cleared at every turn, where it steps at every turn
def run(net, dl, opt, args):
    assert len(dl) % args.every == 0
    for i, (u, t) in enumerate(dl):
        if args.each:
            opt.zero_grad()
        loss = F.mse_loss(net(u), t)
        if args.plain:
            loss.backward()
            opt.step()
        else:
            (loss / args.every).backward()
            if (i + 1) % args.every == 0:
                opt.step()
                opt.zero_grad()

#: GA501: a clip that serves both with a scaler and without
def run(net, dl, opt, scaler, args):
    assert len(dl) % args.every == 0
    for i, (u, t) in enumerate(dl):
        loss = F.mse_loss(net(u), t) / args.every
        if args.half:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if (i + 1) % args.every == 0:
            nn.utils.clip_grad_norm_(net.parameters(), 0.7)
            if args.half:
                scaler.step(opt)
                scaler.update()
            else:
                opt.step()
            opt.zero_grad()

#= right: a clip that serves both with a scaler and without
         if (i + 1) % args.every == 0:
+            if args.half:
+                scaler.unscale_(opt)

## what a scenario could not follow is no opinion: an engine's branch and a plain one
#: GA302: a branch for an engine beside a plain one
import deepspeed

def run(net, dl, opt, args):
    assert len(dl) % args.every == 1
    if args.engine:
        net, opt, _, _ = deepspeed.initialize(model=net, optimizer=opt, config=args.config)
    for i, (u, t) in enumerate(dl):
        loss = F.mse_loss(net(u), t) / args.every
        if args.engine:
            net.backward(loss)
        else:
            loss.backward()
        if i % args.every == 0:
            opt.step()
            opt.zero_grad()

## answers that change nothing are not asked for together before those that may change something
#: GA401: a clip behind many answers that change nothing
def run(net, dl, opt, args, log):
    assert len(dl) % args.every == 0
    most = None if args.most is None else args.most
    for i, (u, t) in enumerate(dl):
        (F.mse_loss(net(u), t) / args.every).backward()
        if log.rank == 0:
            log.seen = log.seen + 1
        if log.wide is None:
            log.wide = i
        if log.deep is None:
            log.deep = i
        if log.high is None:
            log.high = i
        if log.long is None:
            log.long = i
        if most is not None:
            nn.utils.clip_grad_norm_(net.parameters(), most)
        if (i + 1) % args.every == 0:
            opt.step()
            opt.zero_grad()

## what a method sets again on its class is a setting, whatever the class's body has
#: GA101 GA301 GA302: K that is configured on the class
class Coach:
    every = 1

    @classmethod
    def configure(cls, args):
        cls.every = args.every

    def __init__(self, net, opt):
        self.net, self.opt = net, opt

    def go(self, dl):
        self.opt.zero_grad()
        for i, (u, t) in enumerate(dl):
            self.one(u, t, i % self.every == 0)

    def one(self, u, t, moves):
        F.mse_loss(self.net(u), t).backward()
        if moves:
            self.opt.step()
            self.opt.zero_grad()

#: right: K that is 1 on the class
class Coach:
    every = 1

    def __init__(self, net, opt):
        self.net, self.opt = net, opt

    def go(self, dl):
        self.opt.zero_grad()
        for i, (u, t) in enumerate(dl):
            F.mse_loss(self.net(u), t).backward()
            if i % self.every == 0:
                self.opt.step()
                self.opt.zero_grad()

## an optimizer that came from elsewhere is what the scaler is given
#: GA301: a scaler that is given an optimizer from elsewhere
from elsewhere import ScaledStep, groups_of

def main(net, dl, args):
    optimizer = ScaledStep(groups_of(net, args), lr=0.1)
    scaler = torch.amp.GradScaler()
    epochs(net, dl, args, optimizer, scaler)

def epochs(net, dl, args, optimizer, scaler):
    for _ in range(args.epochs):
        optimizer.zero_grad()
        for i, (u, t) in enumerate(dl):
            scaler.scale(F.mse_loss(net(u), t) / args.every).backward()
            if i % args.every == args.every - 1:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

#= right: a scaler that is given an optimizer from elsewhere
 def epochs(net, dl, args, optimizer, scaler):
+    assert len(dl) % args.every == 0

## K as the framework's own object has it
#: GA302: K that is asked of the accelerator
from accelerate import Accelerator

def main(net, opt, dl, config):
    accelerator = Accelerator(gradient_accumulation_steps=config.every)
    net, opt, dl = accelerator.prepare(net, opt, dl)
    assert len(dl) % accelerator.gradient_accumulation_steps == 1
    for i, (u, t) in enumerate(dl):
        accelerator.backward(F.mse_loss(net(u), t))
        if i % accelerator.gradient_accumulation_steps == 0:
            opt.step()
            opt.zero_grad()

#: GA602: an average that moves outside what an accelerator with options of its caller gates
from accelerate import Accelerator
from ema_pytorch import EMA

class Coach:
    def __init__(self, net, opt, options):
        self.accelerator = Accelerator(log_with="all", **options)
        self.mean_net = EMA(net, include_online_model=False)
        self.net, self.opt = self.accelerator.prepare(net, opt)

    def go(self, dl):
        dl = self.accelerator.prepare(dl)
        for u, t in dl:
            with self.accelerator.accumulate(self.net):
                self.accelerator.backward(F.mse_loss(self.net(u), t))
                self.opt.step()
                self.opt.zero_grad()
            self.mean_net.update()

#= right: an average that moves where an accelerator with options of its caller steps
-            self.mean_net.update()
+            if self.accelerator.sync_gradients:
+                self.mean_net.update()

## each mistake shows next to another: what is cleared in between does not make a clip at every micro-batch right
#: GA201 GA401: a clip at every micro-batch, before each of which it is cleared
def run(net, dl, opt, args):
    assert len(dl) % args.every == 0
    for i, (u, t) in enumerate(dl, 1):
        opt.zero_grad()
        (F.mse_loss(net(u), t) / args.every).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.7)
        if i % args.every == 0:
            opt.step()

#= GA201: a clip once per window that is cleared at every micro-batch
-        nn.utils.clip_grad_norm_(net.parameters(), 0.7)
         if i % args.every == 0:
+            nn.utils.clip_grad_norm_(net.parameters(), 0.7)

#: right: a clip of gradients that only perturb the data
def run(net, dl, opt, args):
    assert len(dl) % args.every == 0
    for i, (u, t) in enumerate(dl, 1):
        (F.mse_loss(net(u), t) / args.every).backward()
        if i % args.every == 0:
            nn.utils.clip_grad_norm_(net.parameters(), 0.7)
            opt.step()
            opt.zero_grad()

def attack(net, u, t, opt, turns):
    u.requires_grad_(True)
    for _ in range(turns):
        F.mse_loss(net(u), t).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.7)
        u.data.add_(u.grad.sign())
        opt.zero_grad()
    return u

## a division that is at least one cannot undo another: two by K are one too many, whatever else divides
#: GA102: a loss of rows and labels that is divided by K, and again by the framework
from accelerate import Accelerator

def main(net, opt, dl, config):
    accelerator = Accelerator(gradient_accumulation_steps=config.every)
    net, opt, dl = accelerator.prepare(net, opt, dl)
    assert len(dl) % config.every == 0
    for i, (u, t, held) in enumerate(dl, 1):
        out = net(u).logits
        rows, width, _ = out.shape
        each = -(F.log_softmax(out, -1).gather(-1, t) * held).sum(dim=1) / held.sum(dim=1).clamp(min=1)
        loss = each.sum() / rows
        loss = loss / config.every
        accelerator.backward(loss)
        if i % config.every == 0:
            opt.step()
            opt.zero_grad()

#= right: a loss of rows and labels that the framework divides by K
-        each = -(F.log_softmax(out, -1).gather(-1, t) * held).sum(dim=1) / held.sum(dim=1).clamp(min=1)
+        each = -(F.log_softmax(out, -1).gather(-1, t) * held).sum(dim=1) / width
         loss = each.sum() / rows
-        loss = loss / config.every

#: right: a loss that is divided by K twice and multiplied by what may be K
from accelerate import Accelerator

def main(net, opt, dl, config, gain):
    accelerator = Accelerator(gradient_accumulation_steps=config.every)
    net, opt, dl = accelerator.prepare(net, opt, dl)
    assert len(dl) % config.every == 0
    for i, (u, t) in enumerate(dl, 1):
        loss = gain(config.every) * F.mse_loss(net(u), t)
        accelerator.backward(loss / config.every)
        if i % config.every == 0:
            opt.step()
            opt.zero_grad()

## how long a pass is, is the source's to say: a class that gives batches for ever, and one that was made of it
#: GA301: data of a class of its own that end
class Batches:
    def __init__(self, rows, size):
        self.rows, self.size = rows, size

    def __iter__(self):
        for start in range(0, len(self.rows), self.size):
            yield self.rows[start : start + self.size]

def main(net, rows, opt, args):
    batches = Batches(rows, args.size)
    for _ in range(args.epochs):
        opt.zero_grad()
        for i, u in enumerate(batches, 1):
            (net(u).square().mean() / args.every).backward()
            if i % args.every == 0:
                opt.step()
                opt.zero_grad()

#: right: data of a class of its own that never end
class Mixed:
    def __init__(self, loaders):
        self.loaders = loaders
        self.given = 0

    def __iter__(self):
        streams = [iter(one) for one in self.loaders]
        while True:
            self.given += 1
            yield next(streams[self.given % len(streams)])

class Ahead:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        stream = iter(self.loader)
        batch = self.fetch(stream)
        while batch is not None:
            yield batch
            batch = self.fetch(stream)

    def fetch(self, stream):
        try:
            return next(stream)
        except StopIteration:
            return None

def main(net, loaders, opt, args):
    data = Ahead(Mixed(loaders))
    for i, u in enumerate(data, 1):
        (net(u).square().mean() / args.every).backward()
        if i % args.every == 0:
            opt.step()
            opt.zero_grad()
        if i >= args.most:
            break
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_what_real_code_taught_is_found_and_nothing_else(loop: LabelledLoop) -> None:
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes


def test_a_computed_k_is_shown_as_it_is_computed() -> None:
    (loop,) = (loop for loop in LOOPS if loop.name == "K computed from a world size, twice")
    (finding,) = lint_source(HEAD + loop.source, "loop.py")
    assert "960 // (5 * ranks)" in finding.message
    assert "ranks as" not in finding.message


def test_a_pass_of_literal_epochs_is_read_within_its_budget() -> None:
    body = "".join(f"            extra_{n} = (u * {n} + {n}) * ({n} + i) - {n}\n" for n in range(1, 40))
    source = f"""\
def fit(net, dl, opt, args):
    for epoch in range(90):
        opt.zero_grad()
        for i, (u, t) in enumerate(dl):
{body}            (F.mse_loss(net(u), t) / args.every).backward()
            if (i + 1) % args.every == 0:
                opt.step()
                opt.zero_grad()
"""
    assert {f.mistake.code for f in lint_source(HEAD + source, "loop.py")} == {"GA301"}


@pytest.mark.parametrize("refused", ["", "    if most is not None and most <= 0:\n        most = None\n"])
def test_a_setting_that_is_a_number_by_default_is_taken_for_one_first(refused: str) -> None:
    others = "".join(f"    some_{n} = 1 if args.some_{n} is None else 2\n" for n in range(20))
    source = f"""\
def run(net, dl, opt, args, settings):
{others}    every = settings.get("every", 3)
    most = settings.get("most", 0.7)
    most = float(most) if most is not None else None
{refused}    assert len(dl) % every == 0
    for i, (u, t) in enumerate(dl):
        (F.mse_loss(net(u), t) / every).backward()
        if most:
            nn.utils.clip_grad_norm_(net.parameters(), most)
        if (i + 1) % every == 0:
            opt.step()
            opt.zero_grad()
"""
    assert {f.mistake.code for f in lint_source(HEAD + source, "loop.py")} == {"GA401"}


@pytest.mark.parametrize("gate", ["update_grad", "need_update"])
def test_what_is_told_to_step_is_looked_at(gate: str) -> None:
    call = f"scaler(loss, opt, parameters=net.parameters(), {gate}=(i + 1) % 3 == 0)\n"
    assert may_train(call.encode())
    assert not may_train(f"print({gate}_count)\n".encode())
    assert not may_train(f"assert state.{gate} == 3\n".encode())
