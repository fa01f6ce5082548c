"""Training that lint has to come to: past settings that leave early, in engines run elsewhere, in parts of batches."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import sys

import torch
import torch.nn.functional as F
from ignite.engine import Engine
from torch import nn
from torch.utils.data import DataLoader

"""
LOOPS = labelled_loops("""\
## Parts of a batch, cut at places that the source does not show
#: GA101: as many parts as a setting says, of a size that another one says
def fit(net, dl, opt, cfg):
    bce = nn.BCELoss()
    for u, t in dl:
        opt.zero_grad()
        u, t = u.cuda(), t.cuda()
        for j in range(cfg.GRAD_ACCU_PARTS):
            own_u = u[j * cfg.PART : (j + 1) * cfg.PART]
            own_t = t[j * cfg.PART : (j + 1) * cfg.PART]
            bce(net(own_u), own_t).backward()
        opt.step()

#= right: the same, divided by their number
-            bce(net(own_u), own_t).backward()
+            (bce(net(own_u), own_t) / cfg.GRAD_ACCU_PARTS).backward()

#: right: one place in every turn is the same data, a term for each of several heads
def fit(net, dl, opt, cfg):
    for u, t in dl:
        opt.zero_grad()
        for head in range(cfg.HEADS):
            F.mse_loss(net(u[: cfg.PART], head), t[: cfg.PART]).backward()
        opt.step()

## Batches in lists of batches
#: GA101: a list of batches from the loader, each counted
def fit(net, dl, opt, every):
    done = 1
    while True:
        for group in dl:
            for batch in group:
                u, t = batch
                F.mse_loss(net(u), t).backward()
                if done % every == 0:
                    opt.step()
                    opt.zero_grad()
                done += 1

#= right: batches of a list, divided
-                F.mse_loss(net(u), t).backward()
+                (F.mse_loss(net(u), t) / every).backward()

#: right: a term for each part of a batch, and the batches are counted
def fit(net, dl, opt, every):
    done = 1
    while True:
        for group in dl:
            for part in group:
                u, t = part
                F.mse_loss(net(u), t).backward()
            if done % every == 0:
                opt.step()
                opt.zero_grad()
            done += 1

## Optimizers that are handed over together
#: GA201: two optimizers in one argument, each given to a callable that steps
def fit(net, dl, optimizer, scalers, every):
    opt_gen, opt_dis = optimizer
    scale_gen, scale_dis = scalers
    for i, (u, t) in enumerate(dl):
        loss = F.mse_loss(net.gen(u), t) / every
        opt_gen.zero_grad()
        scale_gen(loss, opt_gen, parameters=net.gen.parameters(), update_grad=(i + 1) % every == 0)

#: GA301: the same, cleared after its steps alone
def fit(net, dl, optimizer, scalers, every):
    opt_gen, opt_dis = optimizer
    scale_gen, scale_dis = scalers
    for i, (u, t) in enumerate(dl):
        loss = F.mse_loss(net.gen(u), t) / every
        scale_gen(loss, opt_gen, parameters=net.gen.parameters(), update_grad=(i + 1) % every == 0)
        if (i + 1) % every == 0:
            opt_gen.zero_grad()

## Ignite's engine, run elsewhere
#: GA101: a method that an engine calls
class Trainer:
    def __init__(self, net, opt, args):
        self.net, self.opt, self.args = net, opt, args
        self.engine = Engine(self.update)

    def update(self, engine, batch):
        u, t = batch
        loss = F.mse_loss(self.net(u), t)
        loss.backward()
        if engine.state.iteration % self.args.every == 0:
            self.opt.step()
            self.opt.zero_grad()

    def run(self, dl):
        self.engine.run(dl, max_epochs=self.args.epochs)

#= right: a method that an engine calls, divided
-        loss = F.mse_loss(self.net(u), t)
+        loss = F.mse_loss(self.net(u), t) / self.args.every

#: right: a method that nothing is known to call
class Trainer:
    def __init__(self, net, opt, args):
        self.net, self.opt, self.args = net, opt, args

    def update(self, engine, batch):
        u, t = batch
        loss = F.mse_loss(self.net(u), t)
        loss.backward()
        if engine.state.iteration % self.args.every == 0:
            self.opt.step()
            self.opt.zero_grad()

## Loss functions that are moved to a device
#: right: a sum, which needs no division
def fit(net, dl, opt, K):
    measure = nn.CrossEntropyLoss(reduction="sum").to("cuda")
    for i, (u, t) in enumerate(dl):
        measure(net(u), t).backward()
        if (i + 1) % K == 0 or i + 1 == len(dl):
            opt.step()
            opt.zero_grad()

#: GA101: a mean
def fit(net, dl, opt, K):
    measure = nn.CrossEntropyLoss().cuda()
    for i, (u, t) in enumerate(dl):
        measure(net(u), t).backward()
        if (i + 1) % K == 0 or i + 1 == len(dl):
            opt.step()
            opt.zero_grad()

## Settings that leave before any training
#: GA301: one of several, asked again inside
class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.net = build(cfg)
        self.opt = torch.optim.AdamW(self.net.parameters())
        self.dl = load(cfg)

    def run(self):
        if self.cfg.only_measure or self.cfg.measure_first:
            self.measure()
            if self.cfg.only_measure:
                return
        for _ in range(self.cfg.epochs):
            for i, (u, t) in enumerate(self.dl):
                (F.mse_loss(self.net(u), t) / self.cfg.accumulation_steps).backward()
                if (i + 1) % self.cfg.accumulation_steps == 0:
                    self.opt.step()
                    self.opt.zero_grad()

def settings():
    read = parse(sys.argv[1:])
    for name in ("a", "b"):
        if read.quick:
            read.rows = 1
        if read.small:
            read.width = 1
        if read.old:
            read.form = 1
        if read.dry:
            read.form = 2
        if read.loud:
            read.form = 3
    return read

if __name__ == "__main__":
    Trainer(settings()).run()

#= right: the same, and every batch steps
-                (F.mse_loss(self.net(u), t) / self.cfg.accumulation_steps).backward()
-                if (i + 1) % self.cfg.accumulation_steps == 0:
-                    self.opt.step()
-                    self.opt.zero_grad()
+                F.mse_loss(self.net(u), t).backward()
+                self.opt.step()
+                self.opt.zero_grad()
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_training_is_come_to_and_nothing_else_is_found(loop: LabelledLoop) -> None:
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes


ONLY_PREDICTS = """\
import argparse
import torch

def check(net, loader, ranks):
    for i, batch in enumerate(loader):
        if ranks.count > 1 and batch.size(0) % ranks.count != 0:
            continue
        print(i, net(batch).mean())

def main():
    parser = argparse.ArgumentParser()
    args = parser.parse_args()
    net = build(args)
    if args.only_predict:
        net = shrink(net)
    optimizer = None if args.only_predict else torch.optim.SGD(net.parameters(), lr=0.1)
    train_loader, check_loader = loaders(args)
    {asks}
    if {trains}:
        for epoch in range(args.epochs):
            optimizer.zero_grad()
            for i, batch in enumerate(train_loader):
                loss = net(batch).mean(){scale}
                loss.backward()
                if (i + 1) % args.every == 0 or i + 1 == len(train_loader):
                    optimizer.step()
                    optimizer.zero_grad()
                if (i + 1) % args.check_every == 0:
                    check(net, check_loader, args.ranks)
    else:
        check(net, check_loader, args.ranks)

main()
"""


@pytest.mark.parametrize("trains", ["not args.only_predict", "not args.only_predict and args.epochs > 0"])
@pytest.mark.parametrize(("scale", "found"), [("", ["GA101"]), (" / args.every", ["GA103"])])
def test_the_scenarios_that_train_come_first(trains: str, scale: str, found: list[str]) -> None:
    asks = "\n    ".join(f"net = net.changed(number={number}) if args.flag_{number} else net" for number in range(20))
    assert codes_in(ONLY_PREDICTS.format(asks=asks, trains=trains, scale=scale)) == found
