"""GA801: losses that are kept with their graphs, and sums and lists that keep none."""

from __future__ import annotations

import pytest
from loops_with_places import filled

from gradcheck_accum.lint import lint_source
from gradcheck_accum.lint.fixes import fix_source

LOOP = """\
import torch
from collections import deque

class Meter:
    def __init__(self):
        self.sum = 0.0
        self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

def train(model, loader, optimizer, criterion, K, epochs):
    {before}
    for epoch in range(epochs):
        {start}
        for i, (x, y) in enumerate(loader):
            out = model(x)
            loss = criterion(out, y)
            {early}
            scaled = loss / K
            scaled.backward()
            {each}
            if (i + 1) % K == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
                {inside}
        {end}
"""


def source(**places: str) -> str:
    return filled(LOOP, **places)


def lines(text: str) -> list[str]:
    """The lines that are flagged."""
    return [
        text.splitlines()[f.where.line - 1].strip() for f in lint_source(text, "train.py") if "801" in f.mistake.code
    ]


KEPT = {
    "total += loss": {"start": "total = 0.0"},
    "total += scaled": {"start": "total = 0"},
    "total += loss * x.size(0)": {"start": "total = 0.0"},
    "total = total + loss": {"start": "total = 0.0"},
    "total = loss + total": {"start": "total = 0.0"},
    "losses.append(loss)": {"start": "losses = []"},
    "losses += [loss]": {"start": "losses = []"},
    "self.total += loss": {"start": "self = Meter(); self.total = 0"},
    "stats['loss'] += loss": {"start": "stats = {'loss': 0.0}"},
    "run.total += scaled": {"start": "run.total = 0.0"},
}


@pytest.mark.parametrize(("statement", "start"), KEPT.items(), ids=KEPT)
def test_what_keeps_the_losses_of_a_pass_is_flagged(statement: str, start: dict[str, str]) -> None:
    assert lines(source(**start, each=statement)) == [statement]
    if "scaled" not in statement:
        assert lines(source(**start, early=statement)) == [statement]


def test_what_is_never_let_go_either() -> None:
    assert lines(source(before="total = 0.0", each="total += loss")) == ["total += loss"]


def test_a_sum_in_a_method_of_the_file() -> None:
    assert lines(source(start="meter = Meter()", each="meter.update(loss, len(x))")) == ["self.sum += value * n"]
    assert lines(source(start="meter = Meter()", each="meter.update(loss.item(), len(x))")) == []


@pytest.mark.parametrize(
    "statement",
    [
        "total += loss.item()",
        "total += float(loss)",
        "total += loss.detach()",
        "total += loss.detach().cpu()",
        "total += loss.data",
        "total += scaled.tolist()",
        "total += loss.isnan()",
        "with torch.no_grad(): total += loss",
        "with torch.inference_mode(): total = total + loss",
        "total += accuracy(out, y)",
        "total += torch.argmax(out).eq(y).sum()",
        "total = loss",
        "last = total; total = loss",
    ],
)
def test_numbers_keep_nothing(statement: str) -> None:
    assert lines(source(start="total = 0.0", each=statement)) == []


def test_a_list_appended_to_without_graphs_still_keeps_them() -> None:
    text = source(start="losses = []", each="with torch.no_grad(): losses.append(loss)")
    assert lines(text) == ["with torch.no_grad(): losses.append(loss)"]


@pytest.mark.parametrize(
    "places",
    [
        {"start": "total = 0.0", "each": "total += loss", "inside": "total = 0.0"},
        {"start": "total = 0.0", "each": "total += loss", "inside": "print(total); total = 0.0"},
        {"start": "losses = []", "each": "losses.append(loss)", "inside": "losses.clear()"},
        {"start": "losses = []", "each": "losses.append(loss)", "inside": "losses = []"},
        {"start": "losses = []", "each": "losses.append(loss.item())"},
        {"start": "losses = []", "each": "losses.append(loss.detach())"},
        {"start": "total = 0.0", "each": "total += loss; total = total.detach()"},
        {"start": "total = 0.0", "each": "total += loss; total = total.item()"},
        {"start": "losses = []", "each": "losses.append(loss); losses = losses[-2:]"},
        {"start": "history = keep(100)", "each": "history.append(loss)"},
        {"start": "meter = make_meter()", "each": "meter.update(loss)"},
        {"start": "total = 0.0", "early": "total += loss", "each": "del total; total = 0.0"},
    ],
)
def test_what_is_let_go_or_unknown_is_no_finding(places: dict[str, str]) -> None:
    assert lines(source(**places)) == []


def test_a_sum_that_is_sent_back_itself_is_no_finding() -> None:
    text = """\
def train(model, loader, optimizer, criterion, K):
    total = 0
    for i, (x, y) in enumerate(loader):
        total += criterion(model(x), y) / K
        if (i + 1) % K == 0:
            total.backward()
            optimizer.step()
            optimizer.zero_grad()
            total = 0
"""
    assert lines(text) == []


def test_losses_of_one_batch_that_are_sent_back_together_are_let_go_with_it() -> None:
    text = """\
import torch
for update in range(6):
    episodes = [play(policy) for _ in range(4)]
    losses = []
    for seen, rewards in episodes:
        losses.append(-(policy(seen).log_prob() * rewards).sum())
    loss = sum(losses) / 4
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    assert lines(text) == []


def test_what_else_a_call_gives_beside_the_loss_may_have_no_graph() -> None:
    text = """\
def train(model, loader, optimizer, compute, K):
    total = 0
    for i, (x, y) in enumerate(loader):
        shown, loss = compute(model(x), y)
        (loss / K).backward()
        total += {kept}
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    assert lines(text.format(kept="shown")) == []
    assert lines(text.format(kept="loss")) == ["total += loss"]
    by_place = text.replace("shown, loss = compute(model(x), y)", "out = compute(model(x), y)").replace(
        "loss", "out[1]"
    )
    assert lines(by_place.format(kept="out[0]")) == []
    assert lines(by_place.format(kept="out[1]")) == ["total += out[1]"]


def test_two_losses_of_one_batch_are_added_up_and_let_go() -> None:
    text = source(early="other = criterion(out, x); loss = loss + other; both = 0; both += loss")
    assert lines(text) == []


@pytest.mark.parametrize(("statement", "start"), KEPT.items(), ids=KEPT)
def test_the_fix_detaches_what_is_kept(statement: str, start: dict[str, str]) -> None:
    before = source(**start, each=statement)
    result = fix_source(before, "train.py", unsafe=False, codes={"GA801"})
    if statement == "losses += [loss]":
        assert result.fixed == ()
        return
    assert ".detach()" in result.source
    assert lines(result.source) == []
    assert all(finding.fix and finding.fix.safe for finding in result.fixed)
    assert len(result.fixed) == 1
