"""Optimizers that work one after the other, over weights that they share: each is at work alone in its own phase."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

PHASES = """\
import torch

def train(model, loader, criterion, args, K=4):
    first = torch.optim.Adam(model.head.parameters(), lr=1e-3)
    for epoch in range(3):
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y){first}).backward()
            if {boundary}:
                first.step()
                {clears}
    second = torch.optim.Adam({weights}, lr=1e-4)
    for epoch in range(3):
        second.zero_grad()
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y){second}).backward()
            if (i + 1) % K == 0:
                second.step()
                second.zero_grad()
        if (i + 1) % K:
            for parameter in model.parameters():
                parameter.grad.mul_(K / ((i + 1) % K))
            second.step()
"""
WEIGHTS = [
    "model.parameters()",
    "[{'params': model.head.parameters()}, {'params': model.body.parameters()}]",
    "args.of(model)",
]


def found(weights: str, **parts: str) -> list[tuple[str, int]]:
    parts = {"first": " / K", "second": " / K", "boundary": "(i + 1) % K == 0", "clears": "first.zero_grad()"} | parts
    findings = lint_source(PHASES.format(weights=weights, **parts), "train.py")
    return [(finding.mistake.code, finding.where.line) for finding in findings]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_every_phase_is_read_by_itself(weights: str) -> None:
    assert found(weights) == [("GA301", 9)]
    assert found(weights, boundary="i % K == 0") == [("GA301", 9), ("GA302", 9)]
    assert found(weights, second="") == [("GA301", 9), ("GA101", 15)]
    assert found(weights, first="") == [("GA101", 7), ("GA301", 9)]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_what_one_phase_leaves_over_is_no_window_of_the_next(weights: str) -> None:
    cleared = found(weights, clears="first.zero_grad()\n        model.zero_grad()")
    assert cleared == [("GA301", 9)]


ALTERNATING = """\
import torch

def train(model, loader, criterion, K=4):
    first = torch.optim.Adam(model.head.parameters(), lr=1e-3)
    second = torch.optim.Adam([{{"params": model.head.parameters()}}, {{"params": model.body.parameters()}}], lr=1e-4)
    for optimizer in {order}:
        for i, (x, y) in enumerate(loader):
            criterion(model(x), y).backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


def test_where_one_comes_back_it_is_not_known_whose_gradients_are_left() -> None:
    codes = codes_in(ALTERNATING.format(order="(first, second, first)"))
    assert codes == []


def test_one_line_may_serve_several_phases() -> None:
    codes = codes_in(ALTERNATING.format(order="(first, second)"))
    assert "GA101" in codes


TURNS = """\
import torch

def train(agent, optimizer, K=4):
    for phase in range(3):
        for batch in agent.recent():
            optimizer.zero_grad()
            agent.policy_loss(batch).backward()
            optimizer.step()
        {between}
        for epoch in range(2):
            for i, batch in enumerate(agent.memory()):
                (agent.value_loss(batch) / K).backward()
                if (i + 1) % K == 0:
                    optimizer.step()
                    optimizer.zero_grad()
            {after}
"""


def in_turns(between: str, after: str = "optimizer.zero_grad()", source: str = TURNS) -> list[tuple[str, int]]:
    findings = lint_source(source.format(between=between, after=after), "train.py")
    return [(finding.mistake.code, finding.where.line) for finding in findings]


def test_what_one_loop_leaves_over_interrupts_no_window_of_another_of_the_same_optimizer() -> None:
    # Five batches, K = 4: the fifth is cleared at line 6, or by the next epoch's end. No step of line 8 counts to 4.
    assert in_turns("optimizer.zero_grad()", after="pass") == [("GA301", 14)]
    assert in_turns("optimizer.zero_grad()") == [("GA301", 14)]


def test_a_window_begins_with_what_the_last_step_of_another_loop_has_used() -> None:
    assert in_turns("pass") == [("GA203", 14), ("GA301", 14)]
    said = [f.message for f in lint_source(TURNS.format(between="pass", after="pass"), "train.py")]
    assert any("the gradients that the step at line 8 has used are not cleared" in one for one in said)


def test_a_window_of_two_backwards_with_one_step_is_interrupted() -> None:
    source = """\
import torch

def train(model, loader, optimizer, K=4):
    for epoch in range(2):
        for i, (x, y) in enumerate(loader):
            if i % 2:
                (model.one(x, y) / K).backward()
            else:
                (model.other(x, y) / K).backward()
            if i == 5:
                optimizer.zero_grad()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
        optimizer.zero_grad()
"""
    found = [(f.mistake.code, f.where.line) for f in lint_source(source, "train.py")]
    assert ("GA303", 13) in found
