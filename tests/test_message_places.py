"""Messages hold the places that they name, and say them as seen from the place of the mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradcheck_accum.diagnosis import diagnose
from gradcheck_accum.ledger.events import Backward, Factor, Operation, Reduction, Step, Term, Trace, ZeroGrad
from gradcheck_accum.ledger.folding import fold
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint import lint_paths
from gradcheck_accum.settings import Settings
from gradcheck_accum.wording import message

MODEL = frozenset({"model"})
LOOP = """\
import torch
from {module} import {function}

def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
"""
STEPS = """\
def update(loss, optimizer):
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
"""
LOOP_THAT_UPDATES = f"""\
{LOOP.format(module="steps", function="update")}\
        update(loss, optimizer)
"""
CLEARS = """\
def clear(optimizer):
    optimizer.zero_grad()
"""
LOOP_THAT_CLEARS = f"""\
{LOOP.format(module="clearing", function="clear")}\
        loss.backward()
        clear(optimizer)
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (Location("/a/train.py", 7), "at line 7"),
        (Location("/a/steps.py", 7), "at steps.py:7"),
        (Location("/a/train.py", 7, cell=2), "at line 7 of cell 2"),
        (Location("/a/other.ipynb", 7, cell=2), "at other.ipynb:cell 2:7"),
    ],
)
def test_a_place_is_said_as_seen_from_another(place: Location, words: str) -> None:
    assert message("at ", place).seen_from(Location("/a/train.py", 3)) == words


def test_messages_are_joined_and_moved_with_their_places() -> None:
    def later(place: Location) -> Location:
        return Location(place.path, place.line + 10)

    said = message("from ", message("here (", Location("a.py", 1), ")"), " to ", Location("a.py", 2)).moved(later)
    assert said.seen_from(Location("a.py", 5)) == "from here (line 11) to line 12"


def test_what_ran_in_another_file_is_named_by_its_file() -> None:
    """As in a run: the helper that clears, the loop's backward and the step are in three files."""
    events = []
    for batch in range(6):
        term = Term("loss", Reduction.MEAN, 5.0, (Factor(1 / 3, Operation.DIVIDE),), rows=5.0)
        events.append(Backward(where=Location("/a/loop.py", 10), micro_batch=batch, stores=MODEL, terms=(term,)))
        if batch % 3 == 2:
            events.append(ZeroGrad(where=Location("/a/clearing.py", 4), stores=MODEL))
            events.append(Step(where=Location("/a/stepping.py", 8), optimizer="opt", stores=MODEL))
    (found,) = diagnose(fold(Trace(tuple(events))))
    assert found.mistake.code == "GA202"
    assert "backward (at loop.py:10) and the step at stepping.py:8: none of the 3 micro-batches" in found.message


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def messages(here: Path) -> dict[tuple[str, int], str]:
    result = lint_paths(["."], Settings(), cache_in=here)
    return {(found.where.path, found.where.line): found.message for found in result.findings}


@pytest.mark.parametrize("runs", [1, 2], ids=["analysed", "remembered"])
def test_a_module_beside_has_lines_of_its_own(here: Path, runs: int) -> None:
    (here / "steps.py").write_text(STEPS)
    (here / "train.py").write_text(LOOP_THAT_UPDATES)
    for _ in range(runs):
        said = messages(here)
    ((place, text),) = said.items()
    assert place == ("steps.py", 3)
    assert "between backward (at line 2) and the step at line 4:" in text
    assert text.endswith(" (as train.py runs it)")


@pytest.mark.parametrize("runs", [1, 2], ids=["analysed", "remembered"])
def test_a_module_beside_names_the_lines_of_the_file_that_runs_it(here: Path, runs: int) -> None:
    (here / "clearing.py").write_text(CLEARS)
    (here / "train.py").write_text(LOOP_THAT_CLEARS)
    for _ in range(runs):
        said = messages(here)
    assert "between backward (at train.py:8) and the step at train.py:10:" in said["clearing.py", 2]


WRAPPED = """\
class Warmup:
    def __init__(self, optimizer):
        self.optimizer, self.count = optimizer, 0

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self):
        self.count += 1
        for group in self.optimizer.param_groups:
            group["lr"] = min(1.0, self.count / 100)
        self.optimizer.step()
"""
LOOP_THAT_WRAPS = """\
import torch
from warmup import Warmup

def train(model, loader, criterion, epochs, K):
    optimizer = Warmup(torch.optim.SGD(model.parameters(), lr=0.1))
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y) / K).backward()
            if (i + 1) % K == 0{last}:
                optimizer.step()
                optimizer.zero_grad()
"""


@pytest.mark.parametrize(("last", "wanted"), [("", "GA301"), (" or i + 1 == len(loader)", "GA103")])
def test_a_step_that_a_module_beside_wraps_is_where_the_loop_calls_it(here: Path, last: str, wanted: str) -> None:
    (here / "warmup.py").write_text(WRAPPED)
    (here / "train.py").write_text(LOOP_THAT_WRAPS.format(last=last))
    found = lint_paths(["."], Settings()).findings
    assert [(f.mistake.code, f.where.path, f.where.line) for f in found] == [(wanted, "train.py", 10)]
    assert "as train.py runs it" not in found[0].message


def test_what_a_method_of_another_name_steps_is_where_the_loop_calls_it(here: Path) -> None:
    (here / "warmup.py").write_text(WRAPPED.replace("def step(self)", "def advance(self)"))
    (here / "train.py").write_text(LOOP_THAT_WRAPS.format(last="").replace("optimizer.step()", "optimizer.advance()"))
    found = lint_paths(["."], Settings()).findings
    assert [(f.mistake.code, f.where.path, f.where.line) for f in found] == [("GA301", "train.py", 10)]
