"""Losses whose gradients a turn asks for itself, of outputs that have no graph: these may be meant for them alone."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

left, right = nn.Linear(6, 3), nn.Linear(6, 3)
opt = torch.optim.SGD([*left.parameters(), *right.parameters()], lr=0.1)
rows = torch.randn(48, 6)


def alike(one, other):
    scores = F.normalize(one, dim=1) @ F.normalize(other, dim=1).t()
    return F.cross_entropy(scores, torch.arange(len(one)))


@torch.no_grad()
def outputs_of(net, parts):
    return torch.cat([net(part) for part in parts])


def outputs_with_graphs(net, parts):
    return torch.cat([net(part) for part in parts])


"""
LOOPS = labelled_loops("""\
#: right: what is cleared before the parts run may be nothing
for places in torch.randperm(48).split(12):
    parts = rows[places].split(4)
    one = outputs_of(left, parts).requires_grad_()
    other = outputs_of(right, parts).requires_grad_()
    alike(one, other).backward()
    opt.zero_grad()
    for net, wanted in ((left, one.grad), (right, other.grad)):
        for part, slope in zip(parts, wanted.split(4)):
            net(part).backward(slope)
    opt.step()

#= right: the attribute says the same
-    one = outputs_of(left, parts).requires_grad_()
-    other = outputs_of(right, parts).requires_grad_()
+    one, other = outputs_of(left, parts), outputs_of(right, parts)
+    one.requires_grad = other.requires_grad = True

#= right: outputs that keep their graphs, and their gradients
-    one = outputs_of(left, parts).requires_grad_()
-    other = outputs_of(right, parts).requires_grad_()
+    one, other = outputs_with_graphs(left, parts), outputs_with_graphs(right, parts)
+    one.retain_grad(), other.retain_grad()

#= GA202: nothing asks for other gradients than the weights', and those of the whole are lost
-    one = outputs_of(left, parts).requires_grad_()
-    other = outputs_of(right, parts).requires_grad_()
+    one, other = outputs_with_graphs(left, parts), outputs_with_graphs(right, parts)

-    for net, wanted in ((left, one.grad), (right, other.grad)):
-        for part, slope in zip(parts, wanted.split(4)):
-            net(part).backward(slope)
+    for net in (left, right):
+        for part in parts:
+            net(part).square().mean().div(6).backward()
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_what_gradients_were_asked_for(loop: LabelledLoop) -> None:
    """A finding for each mistake, and none for its look-alike."""
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes
