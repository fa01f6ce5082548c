"""Options of a command line: what a program does as it is written, unless the command line says otherwise."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

SCRIPT = """\
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def settings():
    parser = argparse.ArgumentParser(description="a script")
    training = parser.add_argument_group("training")
    training.add_argument("--batch-size", "-b", type=int, default={batch})
    training.add_argument("--accumulate", dest="window", type=int, default={window})
    parser.add_argument("--epochs", type=int, default=90)
    parser.set_defaults(lr=0.1)
    return parser.parse_args({given})


def main(args):
    data = TensorDataset(torch.randn({rows}, 7), torch.randn({rows}, 2))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    net = nn.Linear(7, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.mse_loss(net(x), y){scaling}
            loss.backward()
            if (i + 1) % args.window == 0:
                optimizer.step()
                optimizer.zero_grad()


main(settings())
"""


def codes(
    rows: str, *, batch: str = "5", window: str = "3", given: str = "", scaling: str = " / args.window"
) -> list[str]:
    source = SCRIPT.format(rows=rows, batch=batch, window=window, given=given, scaling=scaling)
    return sorted(set(codes_in(source)))


@pytest.mark.parametrize(("rows", "window"), [("30", "3"), ("60", "4"), ("35", "1")])
def test_a_program_whose_defaults_leave_no_remainder_drops_none(rows: str, window: str) -> None:
    assert codes(rows, window=window) == []


BY_HAND = """\
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--accumulate", dest="window", type=int, default={window})
parser.add_argument("--size", type=int, default=5)
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
rows = torch.randn(25, 7)
net = nn.Linear(7, 7)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batches = len(rows) // args.size
for epoch in range(args.epochs):
    for i in range(batches):
        x = rows[i * args.size : (i + 1) * args.size]
        (nn.functional.mse_loss(net(x), x) / args.window).backward()
        if (i + 1) % args.window == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(("window", "expected"), [("1", []), ("5", []), ("2", ["GA301"])])
def test_the_default_window_decides_where_the_source_counts_the_batches_of_a_pass(
    window: str, expected: list[str]
) -> None:
    assert codes_in(BY_HAND.format(window=window)) == expected


@pytest.mark.parametrize("rows", ["35", "52"])
def test_one_whose_defaults_leave_a_remainder_drops_it(rows: str) -> None:
    assert codes(rows) == ["GA301"]


@pytest.mark.parametrize(
    ("rows", "batch", "window", "given"),
    [
        ("read_rows()", "5", "3", ""),
        ("30", "read_size()", "3", ""),
        ("30", "5", "None", ""),
        ("30", "5", "3", '["--batch-size", "4"]'),
        ("30", "5", "3", '["--window=4"]'),
    ],
)
def test_where_the_source_leaves_a_number_open_a_remainder_may_be_dropped(
    rows: str, batch: str, window: str, given: str
) -> None:
    assert codes(rows, batch=batch, window=window, given=given) == ["GA301"]


@pytest.mark.parametrize(("default", "instead", "expected"), [("4", "3", []), ("3", "4", ["GA301"])])
def test_a_default_that_is_set_for_the_whole_program_counts(default: str, instead: str, expected: list[str]) -> None:
    source = SCRIPT.format(rows="30", batch="5", window=default, given="", scaling=" / args.window")
    assert codes_in(source.replace("lr=0.1)", f"lr=0.1, window={instead})", 1)) == expected


@pytest.mark.parametrize("flags", ['"-w", "--window"', '"--window", "-w"', '"--window"'])
def test_an_option_is_called_after_its_first_long_flag(flags: str) -> None:
    def found(rows: str, name: str, flags: str) -> list[str]:
        source = SCRIPT.format(rows=rows, batch="5", window="3", given="", scaling=" / args.window")
        return codes_in(source.replace('"--accumulate", dest="window"', flags).replace(".window", f".{name}"))

    assert found("30", "window", flags) == []
    assert found("35", "window", flags) == ["GA301"]
    assert found("30", "w", '"-w"') == []


def test_other_mistakes_do_not_depend_on_how_long_a_pass_is() -> None:
    assert codes("30", scaling="") == ["GA101"]
    assert codes("35", scaling="") == ["GA101", "GA301"]


def test_a_message_names_the_default() -> None:
    source = SCRIPT.format(rows="30", batch="5", window="3", given="", scaling="")
    (finding,) = lint_source(source, "train.py")
    assert "each is weighted 3x" in finding.message
    assert "taking window as 3" in finding.message


FLUSHED = """\
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--every", type=int, default=3)
args = parser.parse_args()
net = nn.Linear(7, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn({rows}, 7), torch.randn({rows}, 2)), batch_size=5)
for epoch in range(2):
    for i, (x, y) in enumerate(loader, 1):
        (nn.functional.mse_loss(net(x), y) / args.every).backward()
        if i % args.every == 0 or i == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(("rows", "expected"), [("30", []), ("35", ["GA103"])])
def test_a_step_for_what_is_left_is_misscaled_only_where_something_is(rows: str, expected: list[str]) -> None:
    found = lint_source(FLUSHED.format(rows=rows), "train.py")
    assert [finding.mistake.code for finding in found] == expected


CHOSEN = """\
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, StepLR


class Learner:
    def __init__(self, net, config):
        self.net, self.config = net, config
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        self.schedule = self.planned()
        self.seen = 0

    def planned(self):
        kind = getattr(self.config, "schedule", "linear")
        if kind {test} "steps":
            return {first}
        return {second}

    def fit(self, loader):
        for x, y in loader:
            (nn.functional.mse_loss(self.net(x), y) / self.config.every).backward()
            self.seen += 1
            if self.seen % self.config.every == 0:
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
            if self.seen >= self.config.last:
                break
"""
BY_STEPS = "StepLR(self.optimizer, 900)"
LINEAR = "LambdaLR(self.optimizer, lambda n: 1 - n / self.config.last)"


@pytest.mark.parametrize(("test", "first", "second"), [("==", BY_STEPS, LINEAR), ("!=", LINEAR, BY_STEPS)])
def test_what_a_setting_is_by_default_is_read_first(test: str, first: str, second: str) -> None:
    found = lint_source(CHOSEN.format(test=test, first=first, second=second), "train.py")
    assert [finding.mistake.code for finding in found] == ["GA603"]


SIZES = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset, random_split

given = read_rows()
every = TensorDataset(torch.randn({rows}, 7), torch.randn({rows}, 2))
net = nn.Linear(7, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
{making}
for epoch in range(2):
    for i, (x, y) in enumerate({loader}, 1):
        (nn.functional.mse_loss(net(x), y) / 3).backward()
        if i % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("making", "whole", "left"),
    [
        ("part = every", 30, 35),
        ("part, rest = random_split(every, [30, 11])", 41, None),
        ("part, rest = random_split(every, [35, 6])", None, 41),
        ("part = random_split(every, [0.6, 0.4])[0]", 50, 60),
        ("part = Subset(every, range(30))", 77, None),
        ("part = Subset(every, list(range(35)))", None, 77),
        ("part = TensorDataset(torch.cat([torch.ones({rows}, 7), torch.zeros({rows}, 7)]))", 15, 20),
        ("part = TensorDataset(torch.stack([torch.randint(3, ({rows},)), torch.arange({rows})], dim=1))", 30, 35),
        ("part = TensorDataset((torch.rand({rows}, 2) < 0.3).float()[torch.randperm({rows})])", 30, 35),
    ],
)
def test_sizes_of_parts_bound_the_micro_batches_of_a_pass(making: str, whole: int | None, left: int | None) -> None:
    for loader in ("DataLoader(part, batch_size=5)", "DataLoader(part, sampler=RandomSampler(part), batch_size=5)"):
        for rows, expected in ((whole, []), (left, ["GA301"])):
            if rows is not None:
                source = SIZES.format(rows=rows, making=making.format(rows=rows), loader=loader)
                assert codes_in(source) == expected


@pytest.mark.parametrize(
    "making",
    [
        "part, rest = random_split(given, [0.6, 0.4])",
        "part, rest = random_split(given, [len(given) - 7, 7])",
        "part = Subset(given, range(int(0.8 * len(given))))",
        "part = Subset(given, chosen(given))",
    ],
)
def test_parts_of_what_the_source_does_not_show_may_leave_a_remainder(making: str) -> None:
    source = SIZES.format(rows=30, making=making, loader="DataLoader(part, batch_size=5)")
    assert codes_in(source) == ["GA301"]


A_TRIAL = """\
import torch


def train(args, model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    if args.trial:
        args.epochs, args.most = 2, 3
    for epoch in range(args.epochs):
        for i, batch in enumerate(loader):
            (model(batch).mean() / args.K).backward()
            if {test} % args.K == 0:
                optimizer.step()
                optimizer.zero_grad()
            if i + 1 == args.most:
                break
            step += 1
        step += 1
"""


@pytest.mark.parametrize(("test", "expected"), [("step", ["GA302"]), ("(step + 1)", [])], ids=["early", "on time"])
def test_a_trial_that_is_shorter_than_two_windows_says_nothing_of_where_they_close(
    test: str, expected: list[str]
) -> None:
    found = lint_source(A_TRIAL.format(test=test), "train.py")
    assert [f.mistake.code for f in found] == expected
    assert all(f.message.startswith("when not args.trial, the first window closes after 1 micro-batch") for f in found)


BY_ROWS_OF_A_WINDOW = """\
import argparse
import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch-size", type=int, default=7)
parser.add_argument("--num-micro", type=int, default=4)
args = parser.parse_args()
rows = torch.randn({rows}, 6)
loader = DataLoader(TensorDataset(rows), batch_size=args.micro_batch_size, shuffle=True)
net = torch.nn.Linear(6, 6)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
of_a_window = args.micro_batch_size * args.num_micro
for epoch in range(2):
    waiting = 0
    for (x,) in loader:
        ((net(x) - x).pow(2).mean(dim=1).sum() / of_a_window).backward()
        waiting += 1
        if waiting == args.num_micro:
            opt.step()
            opt.zero_grad()
            waiting = 0
    if waiting > 0:
        opt.step()
        opt.zero_grad()
"""


@pytest.mark.parametrize(("rows", "codes"), [("70", ["GA103"]), ("84", [])])
def test_defaults_that_leave_a_short_window_do_not_hide_its_scale(rows: str, codes: list[str]) -> None:
    """As it is written a sum is divided by a number of no known origin, which says nothing against the setting."""
    assert codes_in(BY_ROWS_OF_A_WINDOW.format(rows=rows)) == codes


TRAINED_ON_REQUEST = """\
import argparse
import torch
from my_data import get_loader

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default={epochs})
parser.add_argument("--accum", type=int, default=4)
args = parser.parse_args()
loader = {loader}
net = torch.nn.Linear(6, 6)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
opt.zero_grad()
for epoch in range(args.epochs):
    for i, x in enumerate(loader):
        ((net(x) - x).pow(2).mean() / args.accum).backward()
        if (i + 1) % args.accum == 0:
            opt.step()
            opt.zero_grad()
"""


@pytest.mark.parametrize(
    ("epochs", "loader", "codes"),
    [
        (0, "get_loader(args)", ["GA301"]),
        (2, "get_loader(args)", ["GA301"]),
        (2, "torch.randn(96, 6).split(4)", []),
    ],
)
def test_defaults_with_which_nothing_is_trained_refute_nothing(epochs: int, loader: str, codes: list[str]) -> None:
    assert codes_in(TRAINED_ON_REQUEST.format(epochs=epochs, loader=loader)) == codes
