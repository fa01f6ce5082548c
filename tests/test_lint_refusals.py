"""What a program refuses to run with is no scenario of it: a setting that only the other one leaves open is known."""

from __future__ import annotations

import pytest

from gradcheck_accum.lint import lint_source

RECIPE = """\
class Recipe:
    def __init__(self, cfg):
        self.every = cfg.every
        self.fused = cfg.fused
        self.quiet = cfg.quiet
        {refusal}

    def train(self, model, loader, optimizer, criterion):
        for i, (x, y) in enumerate(loader):
            if {asked}:
                criterion(model(x), y).backward()
            else:
                (criterion(model(x), y) / self.every).backward()
            if (i + 1) % self.every == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
"""
RULES_IT_OUT = [
    "if self.fused and self.every > 1: raise ValueError('one or the other')",
    "if self.every > 1 and cfg.fused: raise ValueError('one or the other')",
    "if self.every > 1 and (self.fused or self.quiet): raise ValueError('one or the other')",
    "if not (self.every == 1 or not self.fused): raise ValueError('one or the other')",
    "assert not (self.fused and self.every > 1)",
    "assert not self.fused, 'not yet'",
    "assert self.every == 1 or not self.fused",
]
LEAVES_IT_OPEN = [
    "pass",
    "if self.fused and self.every > 1: print('slow')",
    "if self.fused and self.every > 100: raise ValueError('so many')",
    "if self.fused and self.quiet: raise ValueError('one or the other')",
    "if not self.fused and self.every > 1: raise ValueError('both')",
    "assert self.fused or self.quiet",
    "assert self.quiet",
]


def found(refusal: str, asked: str = "self.fused") -> list[tuple[str, int]]:
    findings = lint_source(RECIPE.format(refusal=refusal, asked=asked), "train.py")
    return [(finding.mistake.code, finding.where.line) for finding in findings if finding.mistake.code == "GA101"]


@pytest.mark.parametrize("refusal", RULES_IT_OUT)
def test_what_is_refused_is_not_run(refusal: str) -> None:
    assert found(refusal) == []


@pytest.mark.parametrize("refusal", LEAVES_IT_OPEN)
def test_what_is_not_refused_may_be_run(refusal: str) -> None:
    assert found(refusal) == [("GA101", 11)]


@pytest.mark.parametrize(
    ("refusal", "line"),
    [
        ("assert not self.fused", 11),
        ("if not self.fused: raise ValueError('fused only')", None),
    ],
)
def test_a_setting_and_its_negation_are_one_question(refusal: str, line: int | None) -> None:
    expected = [] if line is None else [("GA101", line)]
    assert found(refusal, asked="not self.fused") == expected
