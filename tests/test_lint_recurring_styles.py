"""Styles of trainers that recur in public code, each with a loop that is wrong and its look-alike that is right."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

CLEARED_BY_THE_COUNT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader

class Pretraining:
    def __init__(self, model, args):
        self.model, self.args, self.count = model, args, 0

    def one(self, optimizer, x, y):
        k = self.args.gradient_accumulation_steps
        if {cleared} % k == 0:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        (loss / k).backward()
        if (self.count + 1) % k == 0:
            optimizer.step()
        self.count += 1

    def train(self, data):
        loader = DataLoader(data, batch_size=8)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for epoch in range(self.args.epochs):
            {reset}
            for x, y in loader:
                self.one(optimizer, x, y)
"""


@pytest.mark.parametrize(
    ("cleared", "reset", "expected"),
    [
        ("(self.count + 1)", "pass", ["GA202"]),
        ("self.count", "pass", []),
        ("(self.count + 1)", "self.count = 0", ["GA202", "GA301"]),
    ],
)
def test_what_is_cleared_in_the_middle_of_a_window_that_runs_on_is_no_remainder(
    cleared: str, reset: str, expected: list[str]
) -> None:
    assert sorted(codes_in(CLEARED_BY_THE_COUNT.format(cleared=cleared, reset=reset))) == expected


BY_STEPS_OR_BY_EPOCHS = """\
import torch
from torch.utils.data import DataLoader

class Trainer:
    def __init__(self, model, data, args):
        self.model, self.args = model, args
        self.loader = DataLoader(data, batch_size=args.batch_size)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        self.steps = 0

    def train(self):
        if self.args.mode == "steps":
            self.by_steps()
        else:
            self.by_epochs()

    def by_steps(self):
        k = self.args.gradient_accumulation_steps
        held, stream = 0, iter(self.loader)
        while self.steps < self.args.max_steps:
            try:
                batch = next(stream)
            except StopIteration:
                stream = iter(self.loader)
                batch = next(stream)
            self.backward(batch, k)
            held += 1
            if held >= k:
                self.step()
                held = 0

    def by_epochs(self):
        k = self.args.gradient_accumulation_steps
        for epoch in range(self.args.epochs):
            total = len(self.loader)
            for i, batch in enumerate(self.loader):
                self.backward(batch, {size})
                if (i + 1) % k == 0{flush}:
                    self.step()

    def backward(self, batch, size):
        (self.model(**batch).loss / size).backward()

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
"""


@pytest.mark.parametrize(
    ("size", "flush", "expected"),
    [
        ("k", "", ["GA301"]),
        ("k", " or i + 1 == total", ["GA103"]),
        ("min(k, total - i // k * k)", " or i + 1 == total", []),
    ],
)
def test_a_training_by_steps_says_nothing_of_the_remainders_of_one_by_epochs(
    size: str, flush: str, expected: list[str]
) -> None:
    source = BY_STEPS_OR_BY_EPOCHS.format(size=size, flush=flush)
    assert codes_in(source) == expected
    assert all("when self.args.mode != 'steps', " in f.message for f in lint_source(source, "train.py"))


def test_a_text_that_comes_with_a_batch_divides_nothing() -> None:
    source = """\
def train(args, model, stream, optimizer):
    for step, (name, batch) in enumerate(stream):
        loss = model(batch, {given}){scaling}
        loss.backward()
        if (step + 1) % args.gradient_accumulation_steps == 0 or step + 1 == len(stream):
            optimizer.step()
            optimizer.zero_grad()
"""
    text = 'task=name.split("_")[0]'
    assert codes_in(source.format(given=text, scaling="")) == ["GA101"]
    assert codes_in(source.format(given=text, scaling=" / args.gradient_accumulation_steps")) == ["GA103"]
    assert codes_in(source.format(given="task=name.split(1)[0]", scaling="")) == []


SCALED_UNDER_A_SETTING = """\
def train(settings, model, loader, optimizer, criterion, K):
    done = 0
    for epoch in range(9):
        for x, y in loader:
            loss = criterion(model(x), y){scaling}
            if settings.mixes:
                loss = loss * share_of(x)
            loss.backward()
            done += 1
            if done % K == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


@pytest.mark.parametrize(("scaling", "expected"), [("", ["GA101"]), (" / K", [])])
def test_nothing_is_settled_before_the_scale_of_the_loss_is_known_anywhere(scaling: str, expected: list[str]) -> None:
    assert codes_in(SCALED_UNDER_A_SETTING.format(scaling=scaling)) == expected


def test_an_end_by_rows_that_are_not_shown_leaves_the_windows_unknown() -> None:
    source = """\
def train(model, loader, optimizer, criterion, K):
    total = len(loader.dataset)
    for epoch in range(3):
        used = 0
        for i, (x, y) in enumerate(loader):
            used += len(x)
            (criterion(model(x), y) / K).backward()
            if (i + 1) % K == 0{end}:
                optimizer.step()
                optimizer.zero_grad()
"""
    assert codes_in(source.format(end=" or used == total")) == []
    assert codes_in(source.format(end="")) == ["GA301"]
