"""Counters that run on over the epochs, and programs that ask for whole windows: nothing is left over there."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

HEAD = """\
import itertools
import torch
from torch import nn

"""
RUNNING_ON = {
    "a counter that only ever grows": """
def train(model, loader, optimizer, criterion, epochs, K=3):
    seen = 0
    for epoch in range(epochs):
        for x, y in loader:
            (criterion(model(x), y){scaling}).backward()
            seen += 1
            if seen % K == 0:
                optimizer.step()
                optimizer.zero_grad()
""",
    "a counter that a step sets back": """
def train(model, loader, optimizer, criterion, epochs, K=3):
    pending = 0
    for epoch in range(epochs):
        for x, y in loader:
            (criterion(model(x), y){scaling}).backward()
            pending += 1
            if pending == K:
                optimizer.step()
                optimizer.zero_grad()
                pending = 0
""",
    "a countdown": """
def train(model, loader, optimizer, criterion, epochs):
    K = 5
    left = K
    for epoch in range(epochs):
        for x, y in loader:
            (criterion(model(x), y){scaling}).backward()
            left -= 1
            if left == 0:
                optimizer.step()
                optimizer.zero_grad()
                left = K
""",
    "a counter that is handed on": """
def one_pass(model, loader, optimizer, criterion, K, step):
    for x, y in loader:
        (criterion(model(x), y){scaling}).backward()
        step += 1
        if step % K == 0:
            optimizer.step()
            optimizer.zero_grad()
    return step

def train(model, loader, optimizer, criterion, epochs, K=3):
    step = 0
    for epoch in range(epochs):
        step = one_pass(model, loader, optimizer, criterion, K, step)
""",
    "a number of micro-batches instead of epochs": """
def train(model, loader, optimizer, criterion, total, K=5):
    step = 0
    while step < total:
        for x, y in loader:
            (criterion(model(x), y){scaling}).backward()
            step += 1
            if step % K == 0:
                optimizer.step()
                optimizer.zero_grad()
            if step >= total:
                break
""",
    "numbers that go on where the last call has ended": """
def one_pass(model, loader, optimizer, criterion, start, K=3):
    for i, (x, y) in enumerate(loader, start):
        (criterion(model(x), y){scaling}).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "a loader whose length is known, and epochs whose number is not": """
def train(epochs, K=3):
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = [(torch.randn(4, 5), torch.randn(4, 2)) for _ in range(7)]
    seen = 0
    for epoch in range(epochs):
        for x, y in loader:
            (nn.functional.mse_loss(model(x), y){scaling}).backward()
            seen += 1
            if seen % K == 0:
                optimizer.step()
                optimizer.zero_grad()
""",
}


def codes(source: str) -> list[str]:
    return sorted(set(codes_in(HEAD + source)))


@pytest.mark.parametrize("source", RUNNING_ON.values(), ids=RUNNING_ON.keys())
def test_nothing_is_left_over_where_the_counter_runs_on(source: str) -> None:
    assert codes(source.format(scaling=" / K")) == []


@pytest.mark.parametrize("source", RUNNING_ON.values(), ids=RUNNING_ON.keys())
def test_other_mistakes_are_found_there_all_the_same(source: str) -> None:
    assert codes(source.format(scaling="")) == ["GA101"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("        for x, y in loader:\n", "        pending = 0\n        for x, y in loader:\n"),
        ("    pending = 0\n    for epoch", "    for epoch"),
    ],
)
def test_a_counter_that_begins_anew_in_every_epoch_leaves_a_remainder(before: str, after: str) -> None:
    source = RUNNING_ON["a counter that a step sets back"].format(scaling=" / K")
    anew = source.replace(before, after)
    if "        pending = 0\n        for x" not in anew:
        anew = anew.replace("        for x, y in loader:\n", "        pending = 0\n        for x, y in loader:\n")
    assert codes(anew) == ["GA301"]


def test_what_epochs_that_are_counted_in_the_source_leave_over_is_known() -> None:
    source = RUNNING_ON["a loader whose length is known, and epochs whose number is not"].format(scaling=" / K")
    assert codes(source.replace("range(epochs)", "range(6)")) == []
    assert codes(source.replace("range(epochs)", "range(5)")) == ["GA301"]


REFUSING = """\
def train(model, loader, dataset, optimizer, criterion, batch_size, K=3):
    {refusal}
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y){scaling}).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
ASKS_FOR_WHOLE_WINDOWS = [
    "assert len(loader) % K == 0",
    "assert len(loader) % K == 0, f'{len(loader)} batches'",
    "assert not len(loader) % K",
    "assert K > 1 and len(loader) % K == 0",
    "batches = len(loader); assert batches % K == 0",
    "assert len(dataset) % (batch_size * K) == 0",
    "if len(loader) % K: raise ValueError('no whole windows')",
    "if len(loader) % K != 0: raise SystemExit(2)",
    "if len(dataset) % (batch_size * K): raise ValueError('no whole windows')",
]
ASKS_FOR_SOMETHING_ELSE = [
    "assert len(loader) > K",
    "assert K > 1",
    "assert batch_size % 8 == 0",
    "assert isinstance(len(loader), int)",
    "if len(loader) < K: raise ValueError('no window')",
    "if len(loader) % K: print('a remainder')",
]


@pytest.mark.parametrize("refusal", ASKS_FOR_WHOLE_WINDOWS)
def test_a_program_that_asks_for_whole_windows_has_no_remainder(refusal: str) -> None:
    assert codes(REFUSING.format(refusal=refusal, scaling=" / K")) == []


@pytest.mark.parametrize("refusal", ASKS_FOR_WHOLE_WINDOWS)
def test_what_it_does_in_them_is_read_all_the_same(refusal: str) -> None:
    assert codes(REFUSING.format(refusal=refusal, scaling="")) == ["GA101"]


@pytest.mark.parametrize("refusal", ASKS_FOR_SOMETHING_ELSE)
def test_a_program_that_asks_for_something_else_may_have_one(refusal: str) -> None:
    assert codes(REFUSING.format(refusal=refusal, scaling=" / K")) == ["GA301"]


def test_a_length_that_the_source_shows_is_no_assumption() -> None:
    known = REFUSING.format(refusal="assert len(loader) % K == 0", scaling=" / K")
    source = known.replace("):\n", "):\n    loader = [(torch.randn(4, 5), torch.randn(4, 2)) for _ in range(7)]\n", 1)
    assert codes(source) == ["GA301"]


FROM_SOMEWHERE = """
def one_pass(model, loader, optimizer, criterion, start, K=3):
{begins}    for i, (x, y) in enumerate(loader, start + 1):
        (criterion(model(x), y) / K).backward()
        if i % K == 0:
            optimizer.step()
            optimizer.zero_grad()
{ends}"""
FLUSHES = """    if i % K != 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("begins", "ends", "expected"),
    [
        ("", "", []),
        ("    optimizer.zero_grad()\n", "", ["GA301"]),
        ("", FLUSHES, ["GA103"]),
    ],
    ids=["goes on", "cleared before every pass", "stepped on after every pass"],
)
def test_what_is_left_over_wherever_a_pass_begins_to_count(begins: str, ends: str, expected: list[str]) -> None:
    assert codes(FROM_SOMEWHERE.format(begins=begins, ends=ends)) == expected


def test_a_flush_divided_by_what_is_left_is_right_wherever_a_pass_begins_to_count() -> None:
    rescaled = FLUSHES.replace(
        "        optimizer.step()",
        """        for p in model.parameters():
            p.grad.mul_(K / (i % K))
        optimizer.step()""",
    )
    anew = FROM_SOMEWHERE.format(begins="", ends=rescaled).replace("start + 1", "1")
    assert codes(anew) == []
    assert "GA103" not in codes(FROM_SOMEWHERE.format(begins="", ends=rescaled))


THROUGH_AN_ITERATOR = """
def train(model, dataset, optimizer, criterion, epochs, K=4):
    loader = torch.utils.data.DataLoader(dataset, batch_size=8)
    optimizer.zero_grad()
    {before}
    for epoch in range(epochs):
        {batches}
        for i, (x, y) in {iteration}:
            (criterion(model(x), y) / K).backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("batches", "iteration"),
    [
        ("pass", "enumerate(iter(loader))"),
        ("batches = iter(loader)", "enumerate(batches)"),
        ("batches = iter(loader); bar = tqdm(batches)", "enumerate(bar)"),
        ("batches = iter(loader)\n        while skipped: skipped -= 1; next(batches)", "enumerate(batches)"),
        ("numbered = enumerate(iter(loader))", "numbered"),
    ],
)
def test_a_loop_over_an_iterator_that_was_made_for_it_is_a_pass(batches: str, iteration: str) -> None:
    source = "from tqdm import tqdm\n" + HEAD + THROUGH_AN_ITERATOR
    filled = source.format(before="skipped = 0", batches=batches, iteration=iteration)
    assert codes_in(filled) == ["GA301"]


@pytest.mark.parametrize(
    ("before", "iteration"),
    [
        ("batches = iter(loader)", "enumerate(batches)"),
        ("batches = iter(loader)", "enumerate(itertools.islice(batches, 100))"),
        ("batches = itertools.cycle(loader)", "enumerate(itertools.islice(batches, 100))"),
    ],
)
def test_what_an_iterator_of_all_epochs_has_left_is_not_known(before: str, iteration: str) -> None:
    assert codes(THROUGH_AN_ITERATOR.format(before=before, batches="pass", iteration=iteration)) == []


TAKES_AS_MANY_AS = """\
import torch.nn.functional as F

def fit(network, loader, optimizer, epochs, settings, accumulation_steps):
    for epoch in range(epochs):
        turns = {turns}
        batches = iter(loader)
        for i in range(turns):
            x, y = next(batches)
            loss = F.cross_entropy(network(x), y) / accumulation_steps
            loss.backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("turns", "found"),
    [
        ("len(loader.dataset) // loader.batch_size", ["GA301"]),
        ("int(len(loader.dataset) // loader.batch_size)", ["GA301"]),
        ("len(loader.dataset) // settings.batch_size", ["GA301"]),
        # So many may be whole windows.
        ("settings.turns * accumulation_steps", []),
        ("len(loader.dataset) // settings.part * accumulation_steps", []),
    ],
)
def test_as_many_turns_as_a_data_set_has_batches_are_a_pass(turns: str, found: list[str]) -> None:
    assert codes_in(TAKES_AS_MANY_AS.format(turns=turns)) == found


AS_FAR_AS = (
    HEAD
    + """\
def train(model, loader, optimizer, settings, accumulate):
    for epoch in range(4):
        for n, (x, y) in enumerate(itertools.islice(loader, {most})):
            (nn.functional.cross_entropy(model(x), y){scaling}).backward()
            if (n + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
"""
)


@pytest.mark.parametrize(
    ("most", "left_over"),
    [("settings.rows // settings.batch_size", ["GA301"]), ("settings.most_steps", [])],
    ids=["samples by the size of a batch", "steps"],
)
def test_how_many_batches_islice_takes_of_a_pass_is_no_window(most: str, left_over: list[str]) -> None:
    assert codes(AS_FAR_AS.format(most=most, scaling=" / accumulate")) == left_over
    assert codes(AS_FAR_AS.format(most=most, scaling="")) == ["GA101", *left_over]


COUNTS_ALL = (
    HEAD
    + """\
def train(model, loader, optimizer, settings, accumulate):
    for epoch in range({first}):
        for n, (x, y) in enumerate(loader):
            done = len(loader) * {passes} + n + 1
            (nn.functional.cross_entropy(model(x), y) / accumulate).backward()
            if done % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
"""
)


@pytest.mark.parametrize(
    ("first", "passes"),
    [
        ("1, settings.epochs + 1", "(epoch - 1)"),
        ("settings.first, settings.epochs + 1", "(epoch - 1)"),
        ("settings.first, settings.epochs", "epoch"),
        ("settings.epochs", "epoch"),
    ],
)
def test_epochs_are_counted_from_where_their_range_begins(first: str, passes: str) -> None:
    assert codes(COUNTS_ALL.format(first=first, passes=passes)) == []


def test_a_count_that_begins_a_pass_too_late_is_off() -> None:
    assert "GA302" in codes(COUNTS_ALL.format(first="1, settings.epochs + 1", passes="epoch"))
