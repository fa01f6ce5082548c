"""Loops written without a look at what the engine can read: ten right ones, ten wrong ones, in unlike numbers."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import copy
import math
import torch
from torch import nn
import torch.nn.functional as F

"""
LOOPS = labelled_loops("""\
#: right: steps per epoch assert
def fit(net, dl, opt, accumulate=6):
    n = len(dl)
    assert n % accumulate == 0, (n, accumulate)
    for b, (u, t) in enumerate(dl, 1):
        F.smooth_l1_loss(net(u), t).div(accumulate).backward()
        if b % accumulate == 0:
            opt.step()
            opt.zero_grad(set_to_none=True)

#: right: class counter
class Learner:
    def __init__(self, net, opt, every):
        self.net, self.opt, self.every, self.calls = net, opt, every, 0

    def fit(self, dl, rounds):
        for _ in range(rounds):
            self.one_round(dl)

    def one_round(self, dl):
        for u, t in dl:
            (F.cross_entropy(self.net(u), t) / self.every).backward()
            self.calls += 1
            if self.calls == self.every:
                self.opt.step()
                self.opt.zero_grad()
                self.calls = 0

#: right: backbone head
def run(net, dl):
    slow, fast = [], []
    for key, w in net.named_parameters():
        (slow if key.startswith("stem") else fast).append(w)
    o1, o2 = torch.optim.SGD(slow, 1e-3), torch.optim.AdamW(fast, 1e-3)
    if len(dl) % 5:
        raise SystemExit("needs whole windows")
    for j, (u, t) in enumerate(dl):
        (F.mse_loss(net(u), t) / 5).backward()
        if j % 5 == 4:
            for o in (o1, o2):
                o.step()
            for o in (o1, o2):
                o.zero_grad()

#: right: factory
class Config:
    lr = 2e-4

def adam(module, cfg=Config):
    return torch.optim.Adam(module.parameters(), lr=cfg.lr, betas=(0.5, 0.999))

def run(dl):
    g, d = nn.Linear(7, 7), nn.Linear(7, 1)
    opt_g, opt_d = adam(g), adam(d)
    assert len(dl) % 3 == 0
    for j, u in enumerate(dl):
        fake = g(torch.randn(5, 7))
        (F.softplus(-d(u)).mean() / 3 + F.softplus(d(fake.detach())).mean() / 3).backward()
        if j % 3 == 2:
            opt_d.step()
            opt_d.zero_grad()

#: right: chunks
net, opt = nn.Linear(9, 2), None
opt = torch.optim.RMSprop(net.parameters())
xs, ys = torch.randn(60, 9), torch.randn(60, 2)
for big in range(4):
    u, t = xs[big * 15:(big + 1) * 15], ys[big * 15:(big + 1) * 15]
    opt.zero_grad()
    for lo in range(0, 15, 5):
        hi = lo + 5
        out = net(u[lo:hi])
        (F.mse_loss(out, t[lo:hi]) / 3).backward()
    opt.step()

#: right: polyak per step
def run(q, target, dl, opt, tau=0.005):
    for j, (u, t) in enumerate(dl):
        F.mse_loss(q(u), t).backward()
        opt.step()
        opt.zero_grad()
        with torch.no_grad():
            for a, b in zip(target.parameters(), q.parameters()):
                a.mul_(1 - tau).add_(b, alpha=tau)

#: right: warmup per step
def run(net, dl, opt, peak=0.3):
    assert len(dl) % 6 == 0
    done = 0
    for j, (u, t) in enumerate(dl):
        (F.mse_loss(net(u), t) / 6).backward()
        if (j + 1) % 6:
            continue
        for group in opt.param_groups:
            group["lr"] = peak * min(1.0, (done + 1) / 20)
        opt.step()
        opt.zero_grad()
        done += 1

#: right: skip uncounted
def run(net, dl, opt, rounds):
    kept = 0
    for _ in range(rounds):
        for u, t in dl:
            loss = F.mse_loss(net(u), t) / 5
            if torch.isnan(loss).any():
                continue
            loss.backward()
            kept += 1
            if kept % 5 == 0:
                opt.step()
                opt.zero_grad()

#: right: hard copy
def run(q, target, dl, opt):
    assert len(dl) % 2 == 0
    for j, (u, t) in enumerate(dl):
        (F.mse_loss(q(u), t) / 2).backward()
        if j % 2:
            opt.step()
            opt.zero_grad()
        if j % 50 == 0:
            target.load_state_dict(q.state_dict())

#: right: retry
def run(net, dl, opt, rounds):
    ready = 0
    for _ in range(rounds):
        for u, t in dl:
            try:
                (F.mse_loss(net(u), t) / 7).backward()
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
                continue
            ready += 1
            if ready < 7:
                continue
            ready = 0
            opt.step()
            opt.zero_grad()

#: GA101: assert unscaled
def fit(net, dl, opt, accumulate=6):
    assert len(dl) % accumulate == 0
    for b, (u, t) in enumerate(dl, 1):
        F.smooth_l1_loss(net(u), t).backward()
        if b % accumulate == 0:
            opt.step()
            opt.zero_grad(set_to_none=True)

#: GA301: counter reset each epoch
class Learner:
    def __init__(self, net, opt, every):
        self.net, self.opt, self.every = net, opt, every

    def fit(self, dl, rounds):
        for _ in range(rounds):
            calls = 0
            for u, t in dl:
                (F.cross_entropy(self.net(u), t) / self.every).backward()
                calls += 1
                if calls == self.every:
                    self.opt.step()
                    self.opt.zero_grad()
                    calls = 0

#: GA204: head never cleared
def run(net, dl):
    slow, fast = [], []
    for key, w in net.named_parameters():
        if key.startswith("stem"):
            slow.append(w)
        else:
            fast.append(w)
    o1, o2 = torch.optim.SGD(slow, 1e-3), torch.optim.AdamW(fast, 1e-3)
    assert len(dl) % 5 == 0
    for j, (u, t) in enumerate(dl):
        (F.mse_loss(net(u), t) / 5).backward()
        if j % 5 == 4:
            o1.step()
            o2.step()
            o1.zero_grad()

#: GA204: factory uncleared
def adam(module):
    return torch.optim.Adam(module.parameters(), lr=2e-4)

def run(dl):
    enc, dec = nn.Linear(7, 3), nn.Linear(3, 7)
    a, b = adam(enc), adam(dec)
    assert len(dl) % 3 == 0
    for j, u in enumerate(dl):
        (F.mse_loss(dec(enc(u)), u) / 3).backward()
        if j % 3 == 2:
            a.step()
            b.step()
            b.zero_grad()

#: GA101: chunk sum over chunk
net = nn.Linear(9, 2)
opt = torch.optim.RMSprop(net.parameters())
xs, ys = torch.randn(60, 9), torch.randn(60, 2)
for big in range(4):
    u, t = xs[big * 15:(big + 1) * 15], ys[big * 15:(big + 1) * 15]
    opt.zero_grad()
    for lo in range(0, 15, 5):
        hi = lo + 5
        F.mse_loss(net(u[lo:hi]), t[lo:hi]).backward()
    opt.step()

#: GA602: polyak each micro
def soft(a, b, tau):
    with torch.no_grad():
        for p, q in zip(a.parameters(), b.parameters()):
            p.lerp_(q, tau)

def run(q, target, dl, opt, tau=0.005):
    assert len(dl) % 2 == 0
    for j, (u, t) in enumerate(dl):
        (F.mse_loss(q(u), t) / 2).backward()
        soft(target, q, tau)
        if j % 2:
            opt.step()
            opt.zero_grad()

#: GA601: decay each micro
def run(net, dl, opt):
    assert len(dl) % 6 == 0
    for j, (u, t) in enumerate(dl):
        (F.mse_loss(net(u), t) / 6).backward()
        for group in opt.param_groups:
            group["lr"] *= 0.999
        if (j + 1) % 6 == 0:
            opt.step()
            opt.zero_grad()

#: GA303: skip counted
def run(net, dl, opt):
    assert len(dl) % 5 == 0
    for j, (u, t) in enumerate(dl):
        loss = F.mse_loss(net(u), t) / 5
        if torch.isnan(loss).any():
            print("nan at", j)
            continue
        loss.backward()
        if j % 5 == 4:
            opt.step()
            opt.zero_grad()

#: GA602: ema list
def run(net, dl, opt):
    shadow = [w.detach().clone() for w in net.parameters()]
    assert len(dl) % 3 == 0
    for j, (u, t) in enumerate(dl):
        (F.mse_loss(net(u), t) / 3).backward()
        if j % 3 == 2:
            opt.step()
            opt.zero_grad()
        for s, w in zip(shadow, net.parameters()):
            s.mul_(0.98).add_(w.detach(), alpha=0.02)

#: GA303: oom counted
def run(net, dl, opt):
    assert len(dl) % 7 == 0
    for j, (u, t) in enumerate(dl, start=1):
        try:
            (F.mse_loss(net(u), t) / 7).backward()
        except RuntimeError as problem:
            if "out of memory" in str(problem):
                torch.cuda.empty_cache()
            else:
                raise
        if j % 7 == 0:
            opt.step()
            opt.zero_grad()
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_a_loop_is_read_as_it_was_meant(loop: LabelledLoop) -> None:
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes
