"""Programs that offer much besides their training, which cannot be followed: they are read without it, too."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import torch
from adversaries import Pulling, Pushing, Turning

"""
LOOPS = labelled_loops("""\
#: right: what is added is added by flags, which the setup asks
class Trainer:
    def __init__(self, model, options):
        self.model, self.options = model, options
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.extras = {}
        if options.push:
            self.extras["push"] = Pushing(model)
        if options.pull:
            self.extras["pull"] = Pulling(model)
        if options.turn:
            self.extras["turn"] = Turning(model)
        if options.swap:
            self.extras["swap"] = Turning(model)
        if options.hide:
            self.extras["hide"] = Turning(model)
        if options.mix:
            self.extras["mix"] = Turning(model)

    def run(self, loader, criterion):
        assert len(loader) % 4 == 0
        for i, (x, y) in enumerate(loader):
            (criterion(self.model(x), y) / 4).backward()
            for name, extra in self.extras.items():
                extra.apply_grads()
            if (i + 1) % 4 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()

#= GA101: nothing divides the losses, whatever is added
-            (criterion(self.model(x), y) / 4).backward()
+            criterion(self.model(x), y).backward()

#= right: it is always added, and nothing is known of what it does
-            (criterion(self.model(x), y) / 4).backward()
+            criterion(self.model(x), y).backward()
+            self.always.apply_grads()

-        self.extras = {}
+        self.extras, self.always = {}, Pushing(model)

#: GA101: each turn's result has only what that turn has put into it
class Trainer:
    def __init__(self, model, options):
        self.model, self.options = model, options
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def penalized(self, inputs):
        out = self.model(inputs)
        out["loss"] = out["loss"] + self.penalty(out["scores"])
        return out

    def run(self, rows):
        assert len(rows) % 4 == 0
        for i, row in enumerate(rows):
            self.penalized({"row": i})["loss"].backward()
            if (i + 1) % 4 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()

#= right: divided by K
-            self.penalized({"row": i})["loss"].backward()
+            (self.penalized({"row": i})["loss"] / 4).backward()
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_programs_with_extras(loop: LabelledLoop) -> None:
    """A finding for each mistake, and none for its look-alike."""
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes
