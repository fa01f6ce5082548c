"""Counters that go on from a number that the source does not show, and training functions that yield."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

LOOP = """\
import torch

def train(model, optimizer, loader, args):
    step = {start}
    for epoch in range(args.start, args.epochs):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y){divided}
            loss.backward()
            {before}
            if step % args.every == 0:
                optimizer.step()
                optimizer.zero_grad()
            {after}
"""
STARTS = ["args.start * len(loader)", "args.start * args.per_epoch", "load(args)['step']"]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("before", "after"), [("step += 1", "pass"), ("pass", "step += 1")])
def test_a_counter_may_begin_anywhere(start: str, before: str, after: str) -> None:
    wrong = LOOP.format(start=start, divided="", before=before, after=after)
    right = LOOP.format(start=start, divided=" / args.every", before=before, after=after)
    assert codes_in(wrong) == ["GA101"]
    # Where it begins is not known: neither is whether its first window is short.
    assert lint_source(right, "train.py") == []


def test_a_counter_that_begins_at_0_and_is_tested_before_it_is_raised() -> None:
    source = LOOP.format(start="0", divided=" / args.every", before="pass", after="step += 1")
    assert codes_in(source) == ["GA302"]


GENERATOR = """\
import torch

def train(model, optimizer, loader, K=3):
    yield "begun"
    for epoch in range(2):
        for i, (x, y) in enumerate(loader[:9]):
            loss = torch.nn.functional.mse_loss(model(x), y){divided}
            loss.backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
        yield epoch, loss.item()
"""


@pytest.mark.parametrize(("divided", "codes"), [(" / K", []), ("", ["GA101"])])
@pytest.mark.parametrize(
    "caller", ["", "\ndef main(m, o, data):\n    for state in train(m, o, data):\n        print(state)\n"]
)
def test_a_training_function_may_yield(caller: str, divided: str, codes: list[str]) -> None:
    source = GENERATOR.format(divided=divided) + caller
    found = codes_in(source)
    assert [code for code in found if code != "GA301"] == codes


RESTORED = """\
from torch import nn

def train(args, settings, net, loader, optimizer):
    every = settings["accumulation_steps"]
    turn = args.restored + 1
    for _ in range(args.epochs):
        for x, y in loader:
            loss = nn.functional.mse_loss(net(x), y) / every
            loss.backward()
            if turn % every == 0:
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                {inside}
            {each}
            turn += 1
"""
UPDATE = "optimizer.step(); optimizer.zero_grad()"


def test_a_counter_from_elsewhere_by_which_a_loop_only_clips() -> None:
    assert codes_in(RESTORED.format(inside="pass", each=UPDATE)) == ["GA304"]
    assert codes_in(RESTORED.format(inside=UPDATE, each="pass")) == []
    assert codes_in(RESTORED.replace(" / every", "").format(inside=UPDATE, each="pass")) == ["GA101"]
    assert codes_in(RESTORED.replace(" / every", "").format(inside="pass", each=UPDATE)) == []
