"""With statements over objects of the source's own classes: what they do where they are entered and left."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

LOOP = """\
import torch
import torch.nn.functional as F

class Accumulator:
    def __init__(self, optimizer, k):
        self.optimizer, self.k, self.pending = optimizer, k, 0

    def __enter__(self):
        self.optimizer.zero_grad()
        return self

    def add(self, loss, share):
        (loss / share).backward()
        self.pending += 1
        if self.pending == self.k:
            self.apply()

    def apply(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.pending = 0

    def __exit__(self, *error):
        {leaving}

def train(model, optimizer, data):
    batches = [(torch.randn(5, 3), torch.randn(5, 2)) for _ in range(8)]
    for epoch in range(2):
        with Accumulator(optimizer, 3) as own:
            for i, (x, y) in enumerate(batches):
                own.add(F.mse_loss(model(x), y), 3 if i < 6 else 2)
"""


@pytest.mark.parametrize(
    ("leaving", "codes"),
    [
        ("if self.pending: self.apply()", []),
        ("if error[0] is None and self.pending: self.apply()", []),
        ("return False", ["GA301"]),
    ],
)
def test_a_remainder_is_stepped_where_the_object_is_left(leaving: str, codes: list[str]) -> None:
    assert codes_in(LOOP.format(leaving=leaving)) == codes


HEAD = """\
import contextlib
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

K = 3
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
rows = torch.randn(24, 5, 4)


class Window:
    def __init__(self, size):
        self.size, self.held = size, 0

    @property
    def is_full(self):
        return self.held == self.size

    @contextmanager
    def accumulate(self):
        self.held += 1
        try:
            yield self.size
        finally:
            if self.is_full:
                opt.step()
                opt.zero_grad()
                self.held = 0


@contextlib.contextmanager
def on_this_rank(model, alone):
    if alone:
        with model.no_sync():
            yield
    else:
        yield


window = Window(K)
"""
LOOPS = labelled_loops("""\
#: right: a generator ends a window where its block is left
for x in rows:
    with window.accumulate() as size:
        (net(x).square().mean() / size).backward()

#= GA101: the same, undivided
-    with window.accumulate() as size:
-        (net(x).square().mean() / size).backward()
+    with window.accumulate():
+        net(x).square().mean().backward()

#= GA201: the block clears what it adds to
-        (net(x).square().mean() / size).backward()
+        opt.zero_grad()
+        (net(x).square().mean() / size).backward()

#= right: what leaves the block early leaves it once the generator has ended
-        (net(x).square().mean() / size).backward()
+        (net(x).square().mean() / size).backward()
+        continue
+    opt.zero_grad()

#= GA303: what is left out is counted
-        (net(x).square().mean() / size).backward()
+        loss = net(x).square().mean() / size
+        if not torch.isfinite(loss):
+            continue
+        loss.backward()

#: right: a generator keeps the gradients of all but the last on their rank
net = DistributedDataParallel(net)
for n, x in enumerate(rows, 1):
    with on_this_rank(net, n % K != 0):
        (net(x).square().mean() / K).backward()
    if n % K == 0:
        opt.step()
        opt.zero_grad()

#= GA702: those of all
-    with on_this_rank(net, n % K != 0):
+    with on_this_rank(net, True):
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_generators_that_are_contexts(loop: LabelledLoop) -> None:
    """A finding for each mistake, and none for its look-alike."""
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes
