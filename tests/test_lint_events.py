"""Events of a file's own: what is added to an object by its ``+=``, and called when something has come about."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import torch
from torch import nn

net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


class Moment:
    def __init__(self):
        self.listeners = []

    def __iadd__(self, listener):
        self.listeners.append(listener)
        return self

    def come(self):
        for listener in self.listeners:
            listener()


def use():
    opt.step()


def forget():
    opt.zero_grad()


"""
LOOPS = labelled_loops("""\
#: right: who is added first is called first
full = Moment()
full += use
full += forget
for n in range(1, 13):
    (net(torch.randn(5, 4)).square().mean() / 3).backward()
    if n % 3 == 0:
        full.come()

#= GA202: gradients are cleared before they are used
-full += use
-full += forget
+full += forget
+full += use

#= GA203: nothing clears them
-full += use
-full += forget
+full += use
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_what_is_added_in_place(loop: LabelledLoop) -> None:
    """A finding for each mistake, and none for its look-alike."""
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes
