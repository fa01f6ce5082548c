"""Training behind a call: in a constructor, in a function that several lines call, in a model that clips itself."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import argparse
import copy
import os
import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from nets import Net, batches
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

"""
LOOPS = labelled_loops("""\
## A training that making an object runs, with the settings that the module gives it
#: GA302: the counter begins at 0, as the module says
class Trainer:
    def __init__(self, cfg):
        self.net = Net(cfg)
        self.opt = torch.optim.Adam(self.net.parameters())
        self.run(cfg)

    def run(self, cfg):
        data = batches(cfg)
        done = cfg.first * len(data)
        for _ in range(cfg.first, cfg.last):
            for u, t in data:
                (F.cross_entropy(self.net(u), t) / cfg.every).backward()
                if done % cfg.every == 0:
                    self.opt.step()
                    self.opt.zero_grad()
                done += 1

if __name__ == "__main__":
    settings = argparse.ArgumentParser().parse_args()
    settings.every = 8
    settings.first = 0
    Trainer(settings)

#= right: the counter begins at 1, and counts over all epochs
-        done = cfg.first * len(data)
+        done = cfg.first * len(data) + 1

#: right: it begins where nothing shows
class Trainer:
    def __init__(self, cfg, net, data, opt):
        done = cfg.first * len(data)
        for _ in range(cfg.first, cfg.last):
            for u, t in data:
                (F.cross_entropy(net(u), t) / cfg.every).backward()
                if done % cfg.every == 0:
                    opt.step()
                    opt.zero_grad()
                done += 1

## A counter that was read from the name of a file
#: right: what a text says is an unknown number, from which a counter goes on
def fit(cfg, net, opt, data):
    done = 0
    if cfg.resume:
        done = int(os.listdir(cfg.out)[-1].split("-")[1])
    for _ in range(cfg.epochs):
        for u, t in data:
            (F.mse_loss(net(u), t) / cfg.every).backward()
            if (done + 1) % cfg.every == 0:
                opt.step()
                opt.zero_grad()
            done += 1

#= GA302: it counts from 0, and the test holds there
-    if cfg.resume:
-        done = int(os.listdir(cfg.out)[-1].split("-")[1])
     for _ in range(cfg.epochs):
         for u, t in data:
             (F.mse_loss(net(u), t) / cfg.every).backward()
-            if (done + 1) % cfg.every == 0:
+            if done % cfg.every == 0:

## Several losses of one micro-batch, each given to the same function
#: GA301: a term for each of two tasks
def fit(cfg, net, opt, data):
    def learn(loss):
        (loss / cfg.every).backward()

    net.zero_grad()
    for _ in range(cfg.epochs):
        for i, (u, t) in enumerate(data):
            learn(F.mse_loss(net(u), t))
            learn(F.l1_loss(net(u), t))
            if (i + 1) % cfg.every == 0:
                opt.step()
                net.zero_grad()

#= GA101 GA301: a term for each of two tasks, undivided
-        (loss / cfg.every).backward()
+        loss.backward()

#= right: one line that calls it in a loop may be over parts of the micro-batch
-            learn(F.mse_loss(net(u), t))
-            learn(F.l1_loss(net(u), t))
+            for head in (0, 1):
+                learn(F.mse_loss(net(u, head), t))

## A model that clips its own gradients
#: GA301 GA501: with the scale of a grad scaler in them
def fit(cfg, net, opt, data):
    net = FullyShardedDataParallel(net)
    scaler = ShardedGradScaler()
    for _ in range(cfg.epochs):
        for i, (u, t) in enumerate(data):
            scaler.scale(F.mse_loss(net(u), t) / cfg.every).backward()
            if (i + 1) % cfg.every == 0:
                net.clip_grad_norm_(cfg.limit)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()

#= GA301: after the scale was taken out
+                scaler.unscale_(opt)
                 net.clip_grad_norm_(cfg.limit)

#= GA301 GA401 GA502: at every micro-batch
+            scaler.unscale_(opt)
+            net.clip_grad_norm_(cfg.limit)
             if (i + 1) % cfg.every == 0:
-                net.clip_grad_norm_(cfg.limit)

#= right: what something else clips is not known
-                net.clip_grad_norm_(cfg.limit)
+                cfg.tool.clip_grad_norm_(cfg.limit)

## A part of the whole batch's output, computed again with its graph
#: right: every backward is a term of one loss over the whole batch
def fit(cfg, net, words, opt, data):
    for u, t in data:
        parts = torch.chunk(u, len(u) // cfg.size)
        with torch.no_grad():
            every = torch.cat([net(part) for part in parts])
            named = words(t)
        opt.zero_grad()
        for j, part in enumerate(parts):
            own = every.clone()
            own[j * cfg.size : (j + 1) * cfg.size] = net(part)
            logits = own @ named.t()
            F.cross_entropy(logits, torch.arange(len(logits))).backward()
        opt.step()

#= right: the same in a list of one for each rank
-            own = every.clone()
-            own[j * cfg.size : (j + 1) * cfg.size] = net(part)
-            logits = own @ named.t()
+            own = copy.deepcopy(list(every))
+            own[cfg.rank][j * cfg.size : (j + 1) * cfg.size] = net(part)
+            logits = torch.cat(own) @ named.t()

#= GA101: a loss over the part alone
-            own = every.clone()
-            own[j * cfg.size : (j + 1) * cfg.size] = net(part)
+            own = net(part)

#: GA101 GA301: written into a part of what the same micro-batch gave
def fit(cfg, net, head, opt, data):
    for i, (u, t) in enumerate(data):
        own = net(u)
        own[:, :2] = head(u)
        F.cross_entropy(own, t).backward()
        if (i + 1) % cfg.every == 0:
            opt.step()
            opt.zero_grad()
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_what_a_call_hides_is_read(loop: LabelledLoop) -> None:
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes


MANY_SETTINGS = """\
import pytorch_lightning as pl
import torch
import torch.nn.functional as F

class Net(pl.LightningModule):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x):
        out = self.layer(x)
{layers}
        return out

    def training_step(self, batch, batch_idx):
        x, y = batch
        if self.cfg["hard"] is not None:
            opt, every = self.optimizers(), self.cfg["hard"]["every"]
            loss = F.cross_entropy(self.forward(x), y)
            self.manual_backward(loss / every)
            if (batch_idx + 1) % every == 0{last}:
                if self.current_epoch >= self.cfg["hard"]["first"]:
                    for _ in range(self.cfg["hard"]["rounds"]):
                        opt.zero_grad()
                        self.manual_backward(F.cross_entropy(self.forward(x), y))
                opt.step()
                opt.zero_grad()
        else:
            loss = F.cross_entropy(self.forward(x), y)
        return loss.detach()

    def configure_optimizers(self):
        length = self.cfg["length"]
        if self.cfg["hard"] is not None:
            length = length // self.cfg["hard"]["every"]
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=length)]
"""
LAYER = """\
        if self.cfg["layer {number}"] == "linear":
            out = out * {number}
        else:
            out = out.tanh()
"""


def test_what_trains_is_followed_before_settings_of_what_does_not() -> None:
    layers = "".join(LAYER.format(number=number) for number in range(20))
    # The rounds clear what the window has gathered.
    assert codes_in(MANY_SETTINGS.format(layers=layers, last="")) == ["GA202", "GA301"]
    # A step for the remainder at the last batch, too: only what it is divided by is wrong.
    flushed = MANY_SETTINGS.format(layers=layers, last=" or self.trainer.is_last_batch")
    assert codes_in(flushed) == ["GA202", "GA103"]
