"""Loops in the manner of what was read wrongly in installed packages, each with its look-alike."""

from __future__ import annotations

import pytest

from gradcheck_accum.lint import lint_source

WEIGHED = """
class Trainer:
    def train(self):
        for _ in range(self.num_steps):
            self.optimizer.zero_grad()
            for micro in range(self.grad_accum):
                batch = next(self.data)
                count = (batch["loss_masks"] != 0).float().sum()
                batch["loss_scale"] = {scale}
                loss = self.model(**batch)
                loss.backward()
            self.optimizer.step()
"""


def codes_in(source: str) -> set[str]:
    return {finding.mistake.code for finding in lint_source(source, "train.py")}


@pytest.mark.parametrize(
    ("scale", "codes"),
    [("1 / (count * self.grad_accum)", set()), ("self.grad_accum", set()), ("1 / (count * 2)", {"GA101"})],
)
def test_a_model_may_divide_by_what_was_put_into_its_batch_with_the_steps(scale: str, codes: set[str]) -> None:
    assert codes_in(WEIGHED.format(scale=scale)) == codes


LAST_KEPT = """
def gradients_after(model, loader, optimizer, criterion):
    for i, (x, y) in enumerate(loader):
        criterion(model(x), y).backward()
        if {steps}:
            optimizer.step()
            optimizer.zero_grad()
    return [p.grad for p in model.parameters()]
"""


@pytest.mark.parametrize(("steps", "codes"), [("i + 1 < len(loader)", set()), ("(i + 1) % 2 == 0", {"GA101", "GA301"})])
def test_windows_of_one_micro_batch_leave_no_remainder(steps: str, codes: set[str]) -> None:
    assert codes_in(LAST_KEPT.format(steps=steps)) == codes
