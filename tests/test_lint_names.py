"""What names stand for: imports that the file does not show, defaults of settings, methods that two classes have."""

from __future__ import annotations

import pytest

from gradcheck_accum.lint import lint_source

LOOP = """\
        for epoch in range(epochs):
            optimizer.zero_grad()
            for i, batch in enumerate(loader):
                loss = self.net(batch).mean() / {steps}
                loss.backward()
                if (i + 1) % {steps} == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                    {inside}
"""


def codes(source: str) -> list[str]:
    return [finding.mistake.code for finding in lint_source(source, "train.py")]


@pytest.mark.parametrize(
    "default",
    [
        "config or Config()",
        "(given and given.config) or config",
        "config if config is not None else Config()",
    ],
)
def test_a_default_takes_nothing_from_what_was_given(default: str) -> None:
    source = (
        "class Trainer:\n"
        "    def __init__(self, net, config=None, given=None):\n"
        f"        self.net, self.config = net, {default}\n"
        "    def fit(self, loader, optimizer, epochs):\n"
    )
    assert codes(source + LOOP.format(steps="self.config.every", inside="pass")) == ["GA301"]
    flushed = source + LOOP.format(steps="self.config.every", inside="pass").replace(
        "== 0:", "== 0 or i + 1 == len(loader):"
    )
    assert codes(flushed) == ["GA103"]


def test_conditions_of_several_settings_are_settings_still() -> None:
    source = """\
def train(model, loader, optimizer, epochs, debug, verbose):
    for epoch in range(epochs):
        for i, batch in enumerate(loader):
            loss = model(batch).mean() / 4
            if not (debug and verbose):
                optimizer.zero_grad()
            loss.backward()
            if not (debug and verbose):
                optimizer.step()
            elif (i + 1) % 4 == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
"""
    assert set(codes(source)) == {"GA103", "GA304"}


@pytest.mark.parametrize("switch", ["self.net.train()", "self.net.train(True)", "self.net.train(mode=False)"])
def test_the_mode_of_a_network_is_no_call_of_the_method_train(switch: str) -> None:
    source = (
        "class Trainer:\n"
        "    def __init__(self, net, every):\n"
        "        self.net, self.every = net, every\n"
        "        self.weights = list(net.parameters()) + list(self.net.parameters())\n"
        "    def train(self, loader, optimizer, epochs):\n"
    )
    assert codes(source + LOOP.format(steps="self.every", inside=switch)) == ["GA301"]


def test_what_is_asked_for_no_parameters_may_train_itself() -> None:
    source = """\
from torch import optim

class Trainer:
    def __init__(self, net, loader, every):
        self.net, self.loader, self.every = net, loader, every
        self.optimizer = optim.SGD(net.parameters())

    def train(self):
        for i, batch in enumerate(self.loader):
            self.net(batch).mean().backward()
            if (i + 1) % self.every == 0 or i + 1 == len(self.loader):
                self.optimizer.step()
                self.optimizer.zero_grad()

trainer = Trainer(make_net(), make_loader(), 4)
trainer.train()
"""
    assert codes(source) == ["GA101"]


STARRED = """\
from .everything import *

def train(model, loader, optimizer, every, epochs):
    optimizer.zero_grad()
    for i, batch in {batches}:
        loss = {loss}(model(batch["x"]), batch["y"]) / every
        loss.backward()
        if (i + 1) % every == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
"""


def test_what_a_star_import_brings_is_what_it_is_called() -> None:
    loss = "torch.nn.functional.cross_entropy"
    assert codes(STARRED.format(batches="enumerate(cycle(loader))", loss=loss)) == []
    assert codes(STARRED.format(batches="enumerate(loader)", loss=loss)) == ["GA301"]
    assert codes(STARRED.format(batches="enumerate(loader)", loss="nothing_known(every)")) == ["GA301"]
    for name in ("cycle", "repeat_forever"):
        source = STARRED.format(batches=f"enumerate({name}(loader))", loss=loss)
        own = source.replace("import *", f"import *\n\ndef {name}(items):\n    yield from items\n")
        assert codes(own) == ["GA301"]


@pytest.mark.parametrize(
    ("before", "indent", "after"),
    [("try:", "    ", "except ImportError:\n    torch = None"), ("if has_torch():", "    ", "")],
)
def test_what_is_imported_where_it_is_there_is_known(before: str, indent: str, after: str) -> None:
    source = f"""\
{before}
{indent}from torch.optim.swa_utils import AveragedModel as Smooth
{after}

def train(model, loader, optimizer, every):
    smooth = Smooth(model)
    while True:
        for i, batch in enumerate(loader):
            (model(batch).mean() / every).backward()
            smooth.update_parameters(model)
            if (i + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
"""
    assert "GA602" in codes(source)
    assert "GA602" not in codes(
        source.replace("if (i + 1)", "if False:\n                pass\n            if (i + 1)").replace(
            "            smooth.update_parameters(model)\n", ""
        )
    )
