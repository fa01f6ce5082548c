"""What lint takes names to say: a guess that leaves something open takes the finding away that its twin has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import gradcheck_accum.lint
from gradcheck_accum.lint import lint_source
from gradcheck_accum.lint.program import names
from gradcheck_accum.lint.program.names import Effect, Guess

GUESSES = {name: guess for name, guess in vars(names).items() if isinstance(guess, Guess)}

LOOP = """\
import torch
import helpers

model = torch.nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = {data}
K = args.accumulation_steps
shown = 0.0
for i, (x, y) in enumerate(batches):
    loss = {loss}
    loss.backward()
    shown += loss.item()
    {after}
    if (i + 1) % K == 0 or i + 1 == len(batches):
        optimizer.step()
        optimizer.zero_grad()
print("{word}", shown / 10)
"""


PAIRS = "[(torch.randn(5, 5), torch.randn(5, 2)) for _ in range(10)]"
MEAN = "torch.nn.functional.mse_loss(model(x), y)"


class Twins(NamedTuple):
    """Two loops that differ in one name: a guess fits one of them, and the other has a finding."""

    code: str
    fitting: str
    other: str
    loss: str = MEAN
    after: str = "pass"
    word: str = "loss"
    data: str = PAIRS
    helpers: str = ""

    def found(self, name: str, project: Path) -> bool:
        """Whether the loop with this name in it has the finding."""
        project.joinpath("helpers.py").write_text(self.helpers.replace("NAME", name))
        parts = {part: getattr(self, part).replace("NAME", name) for part in ("loss", "after", "word", "data")}
        found = lint_source(LOOP.format(**parts), str(project / "train.py"))
        return self.code in {finding.mistake.code for finding in found}


GROWING = """\
import torch

def NAME(out, y):
    return torch.nn.functional.mse_loss(out, y) * y.shape[0]
"""
TWINS = {
    # The other setting is asked only where there is something else to find.
    "ACCUMULATION": Twins(
        "GA101",
        "accumulates",
        "mixes",
        loss=f"{MEAN} * share_of(x) if args.NAME else {MEAN}",
        after="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    ),
    "ACTS_ON_GRADIENTS": Twins("GA101", "finish_window", "describe", after="helpers.NAME(optimizer)"),
    "CHANGES_GRADIENTS": Twins("GA101", "sync_grads", "describe", after="helpers.NAME(model)"),
    "COUNTS_OR_SCALES": Twins("GA103", "num_views", "alpha", loss=f"args.NAME * {MEAN} / K"),
    "ENDLESS": Twins("GA103", "infinite", "described", loss=f"{MEAN} / K", data="helpers.NAME(pairs)"),
    "LOSS": Twins("GA101", "own_loss", "own_score", loss="helpers.NAME(model(x), y)", helpers=GROWING),
    "SAYS_SCALED": Twins("GA802", "scaled", "training", loss=f"{MEAN} / K", word="NAME loss"),
    "SETTINGS": Twins("GA101", "cfg", "device", loss="helpers.compute_loss(model, x, y, NAME)"),
}


def test_every_guess_that_leaves_something_open_has_twins() -> None:
    assert {name for name, guess in GUESSES.items() if guess.effect is Effect.LEAVES_OPEN} == TWINS.keys()


@pytest.mark.parametrize("guess", TWINS)
def test_what_a_guess_leaves_open_is_not_found(guess: str, tmp_path: Path) -> None:
    twins, fits = TWINS[guess], GUESSES[guess].fits
    assert fits(twins.fitting)
    assert not fits(twins.other)
    assert not twins.found(twins.fitting, tmp_path)
    assert twins.found(twins.other, tmp_path)


def test_names_are_guessed_by_in_one_place_only() -> None:
    root = Path(gradcheck_accum.lint.__file__).parent
    ignoring_case = {
        str(p.relative_to(root)) for p in root.rglob("*.py") if re.search(r"re\.I\b|IGNORECASE", p.read_text())
    }
    assert ignoring_case == {str(Path("program", "names.py"))}
