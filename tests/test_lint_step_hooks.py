"""Hooks on the steps of an optimizer: they run in every step of it, before or after what it does itself."""

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
rows = torch.randn(24, 5, 4)


class Keeper:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.steps = 0

    def share(self, optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.grad /= K

    def clip(self, optimizer, args, kwargs):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    def forget(self, optimizer, args, kwargs):
        self.optimizer.zero_grad()

    def count(self, optimizer, args, kwargs):
        self.steps += 1


keeper = Keeper(opt)
"""
LOOPS = labelled_loops("""\
#: right: a hook clears the gradients that a step has used
opt.register_step_post_hook(keeper.forget)
for n, x in enumerate(rows, 1):
    (net(x).square().mean() / K).backward()
    if n % K == 0:
        opt.step()

#= GA203: the hook only counts steps
-opt.register_step_post_hook(keeper.forget)
+opt.register_step_post_hook(keeper.count)

#= GA202: the hook clears them before they are used
-opt.register_step_post_hook(keeper.forget)
+opt.register_step_pre_hook(keeper.forget)

#= right: one hook divides the losses' sum, and another one, which has no name, clears it
-opt.register_step_post_hook(keeper.forget)
+opt.register_step_pre_hook(keeper.share)
+opt.register_step_post_hook(lambda *given: opt.zero_grad(set_to_none=True))

-    (net(x).square().mean() / K).backward()
+    net(x).square().mean().backward()

#= GA102: a hook divides by K once more
-opt.register_step_post_hook(keeper.forget)
+opt.register_step_pre_hook(keeper.share)
+opt.register_step_post_hook(keeper.forget)

#= GA402: a hook clips what a step has used already
-opt.register_step_post_hook(keeper.forget)
+opt.register_step_post_hook(hook=keeper.clip)
+opt.register_step_post_hook(keeper.forget)

#= right: what a hook does that is not in this file is not known
-opt.register_step_post_hook(keeper.forget)
+from elsewhere import forgetting
+opt.register_step_post_hook(forgetting)
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_hooks_on_steps(loop: LabelledLoop) -> None:
    """A finding for each mistake, and none for its look-alike."""
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes
