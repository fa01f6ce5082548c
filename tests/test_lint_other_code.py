"""What code of other people taught: each loop in words of our own, next to one that looks like it and is right."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source


def codes(source: str) -> list[str]:
    return sorted(codes_in(source))


TRAINER = """\
import torch
from building import build_model_and_optimizer

class Trainer:
    def __init__(self, config, loader, K):
        self.loader, self.K = loader, K
        self.net, self.opt = build_model_and_optimizer(config)

    def fit(self, epochs):
        self.opt.zero_grad()
        for epoch in range(epochs):
            for i, batch in enumerate(self.loader):
                loss = self.net(batch, labels=batch).loss
                {loss}.backward()
                if {boundary}:
                    self.opt.step()
                    self.opt.zero_grad()
"""


@pytest.mark.parametrize(
    ("loss", "boundary", "expected"),
    [
        ("loss", "(i + 1) % self.K == 0", ["GA101", "GA301"]),
        ("(loss / self.K)", "i % self.K == 0", ["GA301", "GA302"]),
        ("loss", "True", []),
    ],
)
def test_what_a_call_gives_together_is_told_apart_by_its_attributes(
    loss: str, boundary: str, expected: list[str]
) -> None:
    assert codes(TRAINER.format(loss=loss, boundary=boundary)) == expected


LIMITED = """\
import torch

def turns(loader, limit):
    return len(loader) if limit is None else min(len(loader), limit)

def train(model, loader, optimizer, K, limit):
    optimizer.zero_grad()
    for i, batch in enumerate(loader, start=1):
        if limit is not None and i > limit:
            break
        loss = model(batch, labels=batch).loss
        (loss / {divisor}).backward()
        if i % K == 0 or i == turns(loader, limit):
            optimizer.step()
            optimizer.zero_grad()
"""


def test_an_open_bound_beside_a_length_is_the_end_of_the_pass() -> None:
    """Answered once for all turns, "this is the last turn" was taken for a step at every one of them."""
    assert codes(LIMITED.format(divisor="K")) == ["GA103"]


def test_a_remainder_divided_by_its_own_number_is_right_under_an_open_bound() -> None:
    own = "(K if i <= turns(loader, limit) // K * K else turns(loader, limit) % K)"
    assert codes(LIMITED.format(divisor=own)) == []


WEIGHED = """\
import torch
import torch.nn.functional as F

def train(model, loader, optimizer, heads, K):
    for i, (x, targets) in enumerate(loader):
        out = model(x)
        loss = 0.0
        for name in targets:
            loss = loss + F.mse_loss(out[name], targets[name]) * heads[name].get({option})
        loss = loss{divided}
        loss.backward()
        if (i + 1) % K == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_number_with_a_default_is_a_setting_in_whatever_it_is_looked_up() -> None:
    assert codes(WEIGHED.format(option='"weight", 0.7', divided=" / K")) == ["GA103"]


@pytest.mark.parametrize(
    ("option", "divided"), [('"weight", 0.7', ""), ('"scale", 1.0', ""), ("name", " / K")], ids=str
)
def test_a_factor_that_may_be_the_division_is_not_judged(option: str, divided: str) -> None:
    assert codes(WEIGHED.format(option=option, divided=divided)) == []


SEVERAL = """\
import torch
from collections.abc import Iterable

def train(network, settings, loader, K):
    make = settings.optimizer.get_optimizer()
    {made}
    for i, (x, y) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(network(x), y) / K
        loss.backward()
        if (i + 1) % K == 0:
            if isinstance(optimizer, Iterable):
                for one in optimizer:
                    one.step()
            else:
                optimizer.step()
            {cleared}
"""


def test_what_makes_optimizers_is_none_itself() -> None:
    made = "optimizer = make(network.parameters(), lr=settings.lr)"
    assert codes(SEVERAL.format(made=made, cleared="network.zero_grad()")) == ["GA301"]
    assert codes(SEVERAL.format(made=made, cleared="pass")) == ["GA203", "GA301"]


TWO_MODELS = """\
import torch
import torch.nn.functional as F

def train(make, judge, loader, K):
    {coder}
    optimizer = torch.optim.SGD(coder.parameters(), lr=0.1)
    other = torch.optim.SGD(judge.parameters(), lr=0.1)
    for i, x in enumerate(loader):
        made = {made}
        if (i // K) % 2 == 0:
            ((F.mse_loss(made, x) - judge(made).mean()) / K).backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
        else:
            (F.softplus(judge(x)).mean() / K).backward()
            if (i + 1) % K == 0:
                other.step()
                other.zero_grad()
"""


def test_nothing_is_said_where_one_optimizer_never_gets_a_gradient() -> None:
    """The loss was not tied to its model: what seems to be the other's alone is of both."""
    assert (
        codes(TWO_MODELS.format(coder="coder = Coder.from_config(make)", made="Coder.restored(make).decode(x)")) == []
    )


KEPT = """\
import torch
import torch.nn.functional as F

def parts_of(out, y):
    found = {{"near": F.mse_loss(out, y), "far": F.l1_loss(out, y)}}
    found["loss"] = found["near"] + found["far"]
    return found

def train(model, loader, optimizer):
    seen = []
    for x, y in loader:
        record = {{}}
        parts = parts_of(model(x), y)
        record.update({kept})
        optimizer.zero_grad()
        parts["loss"].backward()
        optimizer.step()
        seen.append(record)
    return seen
"""


def test_losses_that_are_kept_by_name_are_kept_with_their_graphs() -> None:
    assert codes(KEPT.format(kept="parts")) == ["GA801"]
    assert codes(KEPT.format(kept="{name: part.item() for name, part in parts.items()}")) == []
    assert codes(KEPT.format(kept='{"loss": parts["loss"].detach()}')) == []


def test_a_few_losses_that_are_kept_for_a_while_are_no_leak() -> None:
    source = KEPT.format(kept="parts").replace("seen.append(record)", "seen.append(record)\n        seen = seen[-2:]")
    assert codes(source) == []


COMPREHENSION = """
import torch
from torch import nn
K = 3
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.randn({rows}, 4)
def feed(number, x):
    loss = net(x).pow(2).mean()
    (loss{scale}).backward()
    if number % K == 0:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()
for epoch in range(2):
    {loop}
"""


@pytest.mark.parametrize(
    "loop",
    [
        "losses = [feed(n, x) for n, x in enumerate(data.split(5), 1)]",
        "print(sum(feed(n, x) for n, x in enumerate(data.split(5), 1) if len(x) > 1))",
    ],
)
def test_a_comprehension_that_makes_gradients_is_a_loop(loop: str) -> None:
    def codes(rows: int, scale: str) -> set[str]:
        return {f.mistake.code for f in lint_source(COMPREHENSION.format(loop=loop, rows=rows, scale=scale), "t.py")}

    assert codes(45, " / K") == set()
    assert codes(45, "") == {"GA101"}
    assert codes(35, " / K") == {"GA301"}
