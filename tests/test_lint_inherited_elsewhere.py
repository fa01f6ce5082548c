"""Classes that a script imports, whose training is in a base of theirs in the same module."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradcheck_accum.lint import lint_paths

MODULE = """\
import torch.nn.functional as F

class {base}:
    def __init__(self, net, optimizer, every):
        self.net, self.optimizer, self.every, self.turns = net, optimizer, every, {start}

    def use(self, loss):
        {divided}.backward()
        if self.turns % self.every == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()

class Between({base}):
    pass

class Classifying(Between, dict):
    def one(self, x, y):
        self.use(F.cross_entropy(self.net(x), y))

class Unrelated:
    def one(self, x, y):
        return F.cross_entropy(self.net(x), y)
"""
SCRIPT = """\
import torch
from teaching import {name}

def main(net, loader, settings):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    pupil = {name}(net, optimizer, settings.every)
    for x, y in loader:
        pupil.turns += 1
        pupil.one(x, y)
"""


@pytest.mark.parametrize(
    ("start", "divided", "codes"),
    [
        ("0", "(loss / self.every)", ["GA301"]),
        ("0", "loss", ["GA101", "GA301"]),
        ("-1", "(loss / self.every)", ["GA301", "GA302"]),
    ],
)
def test_what_an_imported_class_inherits_in_its_own_module_is_read_with_it(
    tmp_path: Path, start: str, divided: str, codes: list[str]
) -> None:
    (tmp_path / "teaching.py").write_text(MODULE.format(base="Teaching", start=start, divided=divided))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(name="Classifying"))
    assert [finding.mistake.code for finding in lint_paths([str(script)]).findings] == codes
    # What it does not inherit is none of its doing.
    script.write_text(SCRIPT.format(name="Unrelated"))
    assert lint_paths([str(script)]).findings == ()


@pytest.mark.parametrize(
    ("passed_on", "codes"),
    [
        ("from pupils.numbers import *\nfrom .teaching import *\n", ["GA101", "GA301"]),
        ("from .teaching import Classifying\n", ["GA101", "GA301"]),
        ("from .numbers import *\n", []),
        ("import pupils.teaching\n", []),
    ],
)
def test_a_package_passes_on_what_it_imports_with_a_star(tmp_path: Path, passed_on: str, codes: list[str]) -> None:
    package = tmp_path / "pupils"
    package.mkdir()
    (package / "__init__.py").write_text(passed_on)
    (package / "numbers.py").write_text("ONE = 1\n")
    (package / "teaching.py").write_text(MODULE.format(base="Teaching", start="0", divided="loss"))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(name="Classifying").replace("from teaching", "from pupils"))
    assert [finding.mistake.code for finding in lint_paths([str(script)]).findings] == codes
