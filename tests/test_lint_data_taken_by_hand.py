"""Micro-batches that a loop takes from an iterator or a queue itself, and what their sums are divided by."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

HEAD = """\
import argparse
from itertools import islice

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

"""
STEP = "optimizer.step(); optimizer.zero_grad()"

WINDOWS = """\
def pieces():
    {head}
        yield torch.randn(5, 4), torch.randn(5, 1)


def fit(model, loader, K={steps}):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    source = {source}
    while True:
        window = list(islice(source, K))
        if not window:
            break
        optimizer.zero_grad()
        for x, y in window:
            (F.mse_loss(model(x), y) / {divisor}).backward()
        optimizer.step()
"""
COUNTED = "for _ in range(11):"


@pytest.mark.parametrize(
    ("head", "source", "divisor", "expected"),
    [
        (COUNTED, "iter(loader)", "K", ["GA103"]),
        (COUNTED, "iter(loader)", "len(window)", []),
        (COUNTED, "pieces()", "K", ["GA103"]),
        (COUNTED, "pieces()", "len(window)", []),
        ("for _ in range(12):", "pieces()", "K", []),  # whole windows: 12 micro-batches, three or four at a time
        ("while True:", "pieces()", "K", []),
    ],
)
@pytest.mark.parametrize("steps", [3, 4])
def test_windows_that_islice_takes_until_nothing_is_left(
    head: str, source: str, divisor: str, expected: list[str], steps: int
) -> None:
    loop = WINDOWS.format(head=head, source=source, divisor=divisor, steps=steps)
    assert sorted(codes_in(HEAD + loop)) == expected


QUEUES = {
    "in the test": """
    while (item := feed.get()) is not None:
        x, y = item
        {turn}
""",
    "at the end of the turn": """
    item = feed.get()
    while item is not None:
        x, y = item
        {turn}
        item = feed.get()
""",
    "several names": """
    x, y = feed.following()
    while x is not None:
        {turn}
        x, y = feed.following()
""",
}
FED = """\
from feeding import Feed


def fit(model, source, K=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    feed, count = Feed(source), 0
"""
TURN = """\
(F.mse_loss(model(x), y){scaling}).backward()
        count += 1
        {clip}
        if count % K == 0:
            {step}"""
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize(
    ("scaling", "clip", "step", "expected"),
    [
        (" / K", "pass", STEP, []),
        ("", "pass", STEP, ["GA101"]),
        (" / K", "optimizer.zero_grad()", "optimizer.step()", ["GA202"]),
        (" / K", CLIP, STEP, ["GA401"]),
        (" / K", "pass", "optimizer.step()", ["GA203"]),
    ],
)
def test_data_that_a_while_loop_asks_for(queue: str, scaling: str, clip: str, step: str, expected: list[str]) -> None:
    turn = TURN.format(scaling=scaling, clip=clip, step=step)
    assert sorted(codes_in(HEAD + FED + QUEUES[queue].format(turn=turn))) == expected


ALONG = """\
tokens = torch.randint(0, 9, (6, {length}))
tags = tokens % 3
model = nn.Embedding(9, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(zip({split})):
    (F.cross_entropy(model(x).transpose(1, 2), y) / 3).backward()
    if (i + 1) % 3 == 0:
        optimizer.step()
        {clear}
"""


@pytest.mark.parametrize(
    "split",
    [
        "tokens.split(7, 1), tags.split(7, 1)",
        "tokens.split(7, dim=1), tags.split(7, dim=1)",
        "torch.split(tokens, 7, dim=-1), torch.split(tags, 7, -1)",
    ],
)
@pytest.mark.parametrize(
    ("length", "clear", "expected"),
    [
        (63, "optimizer.zero_grad()", []),  # nine parts, three windows
        (63, "pass", ["GA203"]),
        (70, "optimizer.zero_grad()", ["GA301"]),  # ten parts
    ],
)
def test_parts_along_another_dimension_than_the_rows(split: str, length: int, clear: str, expected: list[str]) -> None:
    assert sorted(codes_in(HEAD + ALONG.format(length=length, split=split, clear=clear))) == expected


SUMS = """\
ROWS, ACCUM, LONG = 4, 3, 5
x, y = torch.randn({rows}, LONG), torch.randint(0, 2, ({rows},))
model = nn.Linear(LONG, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, y), batch_size=ROWS)
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        loss = F.cross_entropy(model(a), b, reduction="sum")
        (loss / {divisor}).backward()
        if (i + 1) % ACCUM == 0:
            optimizer.step(); optimizer.zero_grad()
    {flush}
"""


@pytest.mark.parametrize(
    ("rows", "divisor", "flush", "expected"),
    [
        (40, "(ROWS * ACCUM)", STEP, ["GA103"]),  # ten micro-batches: the last window has one
        (36, "(ROWS * ACCUM)", "pass", []),
        (36, "(ROWS * ACCUM * LONG)", "pass", []),  # what the sum has of each row is not known
        (40, "(ROWS * LONG)", STEP, []),
    ],
)
def test_rows_times_k_count_the_rows_of_a_window(rows: int, divisor: str, flush: str, expected: list[str]) -> None:
    assert sorted(codes_in(HEAD + SUMS.format(rows=rows, divisor=divisor, flush=flush))) == expected


COUNTS = """\
K = 4
images = torch.randn(48, 3)
kinds = images.argmax(1)
kinds[torch.rand(48) < 0.3] = -1
model = nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def windows():
    for order in torch.randperm(48).view(-1, K, 4):
        yield [(images[index], kinds[index]) for index in order]


for window in windows():
    valid = {valid}
    optimizer.zero_grad()
    for x, y in window:
        loss = F.cross_entropy(model(x), y, ignore_index=-1, reduction="sum"){scaling}
        loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "valid", ["sum((y != -1).sum() for _, y in window)", "sum((y >= 0).sum() for _, y in window).item()"]
)
def test_a_sum_divided_by_a_count_that_was_read_is_a_loss_of_unknown_weight(valid: str) -> None:
    assert codes_in(HEAD + COUNTS.format(valid=valid, scaling=" / valid")) == []


ASKED = """\
def settings():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accum", type=int, default=3)
    parser.add_argument("--updates", type=int, default=8)
    return parser.parse_args()


def main():
    args = settings()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.randn({size}, 5, 4)
    for i in range(len(rows)):
        (model(rows[i]).mean(){scaling}).backward()
        {clear}
        if (i + 1) % args.accum == 0:
            {step}


main()
"""


WHOLE = "args.updates * args.accum"


@pytest.mark.parametrize(
    ("size", "scaling", "clear", "step", "expected"),
    [
        (WHOLE, " / args.accum", "pass", STEP, []),
        (WHOLE, " / args.accum", "pass", "optimizer.step()", ["GA203"]),
        (WHOLE, "", "pass", STEP, ["GA101"]),
        (WHOLE, " / args.accum", "optimizer.zero_grad()", "optimizer.step()", ["GA202"]),
        ("args.updates", " / args.accum", "pass", STEP, ["GA301"]),
    ],
)
def test_data_made_for_so_many_windows_may_be_whole_ones(
    size: str, scaling: str, clear: str, step: str, expected: list[str]
) -> None:
    loop = ASKED.format(size=size, scaling=scaling, clear=clear, step=step)
    assert sorted(codes_in(HEAD + loop)) == expected


NAMED = """\
def fit(model, optimizer, data, updates, rows, accum_steps):
    done = seen = 0
    while done < updates:
        x, y = data.{call}(rows)
        seen += 1
        (F.mse_loss(model(x), y){scaling}).backward()
        if seen % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            done += 1
"""


@pytest.mark.parametrize("call", ["next_batch", "get_batch_data", "sample_train_batch"])
def test_a_call_whose_name_says_so_gives_a_micro_batch_of_so_many_rows(call: str) -> None:
    assert codes_in(HEAD + NAMED.format(call=call, scaling="")) == ["GA101"]
    assert codes_in(HEAD + NAMED.format(call=call, scaling=" / accum_steps")) == []


def test_what_another_call_gives_may_be_no_micro_batch() -> None:
    assert codes_in(HEAD + NAMED.format(call="statistics", scaling="")) == []
