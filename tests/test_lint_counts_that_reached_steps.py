"""A count that has reached K where the loop steps is K there: gradients that are divided by it are divided by K."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import torch
from torch import nn

K = 3
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def times(factor):
    for p in net.parameters():
        if p.grad is not None:
            p.grad *= factor


"""
LOOPS = labelled_loops("""\
#: right: the gradients are divided by the count, and the losses by nothing
held = 0
for _ in range(30):
    loss = net(torch.randn(5, 4)).square().mean()
    loss.backward()
    held += 1
    if held == K:
        times(1 / held)
        opt.step()
        opt.zero_grad()
        held = 0

#= GA102: the losses are divided by K as well
-    loss.backward()
+    (loss / K).backward()

#= right: a number that counts nothing weighs all gradients
-    loss.backward()
+    (loss / K).backward()
-    held += 1
-    if held == K:
-        times(1 / held)
+    held += 1
+    if held == K:
+        times(0.3)
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_counts_that_have_reached_k(loop: LabelledLoop) -> None:
    """A finding for each mistake, and none for its look-alike."""
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes
