"""A coefficient over K that multiplies a loss, in what is shown as well, and counts that a function keeps itself."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
rows = torch.randn(36, 5, 4)

"""
LOOPS = labelled_loops("""\
#: right: each half of an objective, by a share of 1/K
K = 3
for n, x in enumerate(rows, 1):
    near, far = F.relu(net(x)).mean(), F.relu(1 - net(x.flip(0))).mean()
    near.mul(0.5 / K).backward()
    far.mul(0.5 / K).backward()
    if n % K == 0:
        opt.step()
        opt.zero_grad()

#= GA101: half of it, and no division
-    near.mul(0.5 / K).backward()
-    far.mul(0.5 / K).backward()
+    near.mul(0.5).backward()
+    far.mul(0.5).backward()

#= GA102: a share of 1/K, and one more division by it
-    near.mul(0.5 / K).backward()
-    far.mul(0.5 / K).backward()
+    (near.mul(0.5 / K) / K).backward()
+    (far.mul(0.5 / K) / K).backward()

#= right: a constant over K, which was given a name before
-K = 3
+K, SHARE = 3, 0.7
+WEIGHT = SHARE / K

-    near.mul(0.5 / K).backward()
-    far.mul(0.5 / K).backward()
+    (near * WEIGHT).backward()

#: right: the mean of an objective's losses, with its own coefficient
K = 2
held = []
for n, x in enumerate(rows, 1):
    loss = F.relu(net(x)).mean()
    loss.mul(0.5 / K).backward()
    held.append(loss.item() / 2)
    if n % K == 0:
        opt.step()
        opt.zero_grad()
    if n % 6 == 0:
        print(sum(held) / 6)
        held = []

#= GA802: the mean of what was divided
-    loss.mul(0.5 / K).backward()
-    held.append(loss.item() / 2)
+    loss = loss * (0.5 / K)
+    loss.backward()
+    held.append(loss.item())

#: right: a function counts down in itself
K = 3

def used():
    used.left -= 1
    if used.left:
        return
    opt.step()
    opt.zero_grad()
    used.left = K

used.left = K
for x in rows:
    (net(x).square().mean() / K).backward()
    used()

#= GA101: the same, undivided
-    (net(x).square().mean() / K).backward()
+    net(x).square().mean().backward()

#= GA301 GA302: it begins at a number that is one off, and so one is left over
-used.left = K
-for x in rows:
+used.left = K - 1
+for x in rows:
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_quotients_and_counts(loop: LabelledLoop) -> None:
    """A finding for each mistake, and none for its look-alike."""
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes
