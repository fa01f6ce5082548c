"""Micro-batches that the loop's counter counts and no backward runs on, where no data loader gives them (GA303).

K is 3, a micro-batch has 5 rows, a pass 12 micro-batches. A window of which one micro-batch never ran gets two thirds
of its large batch's gradient: an error of a third.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
K, PER_PASS, seen = 3, 12, 0
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(5, 4), torch.randn(5, 2)) for _ in range(PER_PASS)]
def bad(number):
    return number in {skipped}
def backward(pair, scale):
    (0.7 * nn.functional.mse_loss(model(pair[0]), pair[1]) * scale).backward()
def step():
    optimizer.step()
    optimizer.zero_grad()
for epoch in range(2):
{loop}
"""
FROM_ZERO = """
    for i, pair in enumerate(data):
        if bad(i):
            continue
        backward(pair, 1 / K)
        if (i + 1) % K == 0:
            step()
"""
FROM_ONE = """
    for n, pair in enumerate(data, 1):
        if not bad(n - 1):
            backward(pair, 1 / K)
        if n % K == 0:
            step()
"""
OVER_THE_PASSES = """
    for pair in data:
        number, seen = seen % PER_PASS, seen + 1
        if bad(number):
            continue
        backward(pair, 1 / K)
        if seen % K == 0:
            step()
"""


@pytest.mark.parametrize(
    "loop", [FROM_ZERO, FROM_ONE, OVER_THE_PASSES], ids=["from zero", "from one", "over the passes"]
)
@pytest.mark.parametrize(
    ("skipped", "windows"),
    [((4,), {1}), ((0,), {0}), ((10,), {3}), ((1, 9), {0, 3}), ((0, 4, 7), {0, 1, 2}), ((0, 4, 7, 10), {0, 1, 2, 3})],
    ids=["in the middle", "the first", "of the last", "of the first and the last", "of most", "of every window"],
)
def test_what_is_counted_and_never_ran(loop: str, skipped: tuple[int, ...], windows: set[int], tmp_path: Path) -> None:
    result = watch_source(SCRIPT.format(skipped=skipped, loop=loop), tmp_path)
    wrong = {window.index: window.grad_rel_error for window in result.windows if window.grad_rel_error > 0.01}
    assert set(wrong) == windows | {window + 4 for window in windows}
    assert list(wrong.values()) == pytest.approx([1 / 3] * len(wrong), abs=1e-5)
    if loop is OVER_THE_PASSES and 0 in windows:
        # Where a number of one's own begins to count, and whether its first test comes too early, is not read.
        return
    assert [d.mistake.code for d in result.diagnosis] == ["GA303"], [d.message for d in result.diagnosis]


SWALLOWED = """
    for i, pair in enumerate(data):
        try:
            if bad(i):
                raise ValueError(i)
            backward(pair, 1 / K)
            if (i + 1) % K == 0:
                step()
        except ValueError:
            pass
"""


def test_what_never_ran_takes_its_step_with_it_though_no_window_holds_k(tmp_path: Path) -> None:
    """Of every six micro-batches the third and the fifth raise: the step that is left comes after four, of 4/3."""
    result = watch_source(SCRIPT.format(skipped=(2, 4, 8, 10), loop=SWALLOWED), tmp_path)
    assert [window.micro_batches for window in result.windows] == [4, 4, 4, 4]
    assert [window.grad_rel_error for window in result.windows] == pytest.approx([1 / 3] * 4, abs=1e-5)
    assert result.verdict is Verdict.DEVIATES


def test_a_window_that_is_short_is_interrupted_though_no_window_holds_k(tmp_path: Path) -> None:
    """The third and the seventh raise: a step comes after five micro-batches, of 5/3, the next after two, of 2/3."""
    result = watch_source(SCRIPT.format(skipped=(2, 7), loop=SWALLOWED).replace("12, 0", "9, 0"), tmp_path)
    assert [window.micro_batches for window in result.windows] == [5, 2, 5, 2]
    assert [window.grad_rel_error for window in result.windows] == pytest.approx([2 / 3, 1 / 3] * 2, abs=1e-5)
    assert [(d.mistake.code, d.windows) for d in result.diagnosis] == [("GA303", (1, 3))]


RIGHT = {
    "only what ran is counted": """
    ran = 0
    for i, pair in enumerate(data):
        if bad(i):
            continue
        backward(pair, 1 / K)
        ran += 1
        if ran % K == 0:
            step()
""",
    "divided by what ran": """
    kept = []
    for i, pair in enumerate(data):
        if not bad(i):
            kept.append(pair)
        if (i + 1) % K == 0:
            for own in kept:
                backward(own, 1 / len(kept))
            step()
            kept = []
""",
    "every other micro-batch is another network's": """
    for i, pair in enumerate(data):
        if i % 2:
            continue
        backward(pair, 1 / K)
        if i % (2 * K) == 2 * K - 2:
            step()
""",
}


@pytest.mark.parametrize("loop", RIGHT.values(), ids=list(RIGHT))
def test_what_is_counted_otherwise_is_right(loop: str, tmp_path: Path) -> None:
    result = watch_source(SCRIPT.format(skipped=(1, 6, 8), loop=loop), tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


def test_a_loop_that_starts_in_the_middle_of_a_count_has_skipped_nothing(tmp_path: Path) -> None:
    source = SCRIPT.format(skipped=(), loop=OVER_THE_PASSES).replace("12, 0", "12, 6000")
    result = watch_source(source, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


SPIKE_THAT_CLEARS = """
    for i, pair in enumerate(data):
        if bad(i):
            optimizer.zero_grad()
            continue
        backward(pair, 1 / K)
        if (i + 1) % K == 0:
            step()
"""
CLEARED_BETWEEN_PASSES = """
    optimizer.zero_grad()
    for i, pair in enumerate(data[:11]):
        backward(pair, 1 / K)
        if (i + 1) % K == 0:
            step()
"""


def test_a_window_whose_last_micro_batch_is_rejected_was_cleared_on_purpose(tmp_path: Path) -> None:
    # The step that would have come there is not made, and the next window is whole: the counter has gone on over both.
    result = watch_source(SCRIPT.format(skipped=(5,), loop=SPIKE_THAT_CLEARS), tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert len(result.windows) == 6
    assert any("the gradients of 2 complete windows were cleared without a step" in note for note in result.notes)


def test_a_remainder_that_the_next_pass_clears_is_lost(tmp_path: Path) -> None:
    result = watch_source(SCRIPT.format(skipped=(), loop=CLEARED_BETWEEN_PASSES), tmp_path)
    assert result.verdict is Verdict.DEVIATES
    assert [d.mistake.code for d in result.diagnosis] == ["GA301"]


def test_a_window_that_is_cleared_in_its_middle_counts_what_is_gone(tmp_path: Path) -> None:
    result = watch_source(SCRIPT.format(skipped=(4,), loop=SPIKE_THAT_CLEARS), tmp_path)
    assert result.verdict is Verdict.DEVIATES
    assert [d.mistake.code for d in result.diagnosis] == ["GA303"]


OF_A_LOADER = """
loader = torch.utils.data.DataLoader(data, batch_size=None)
for epoch in range(1):
    for i, pair in enumerate(loader, 1):
        if bad(i - 1):
            continue
        backward(pair, 1 / K)
        if i % K == 0:
            step()
"""


@pytest.mark.parametrize(("skipped", "codes"), [({5}, ["GA303"]), ({5, 6}, ["GA303"]), (set(), [])])
def test_the_step_is_skipped_with_the_micro_batch_that_would_have_made_it(
    skipped: set[int], codes: list[str], tmp_path: Path
) -> None:
    source = SCRIPT.replace("{skipped}", repr(skipped)).replace("for epoch in range(2):\n{loop}\n", OF_A_LOADER)
    result = watch_source(source, tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT)


TWO_TASKS = """
import torch
from itertools import cycle
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(6)
K = 2
kinds = DataLoader(TensorDataset(torch.randn(30, 4), torch.randint(0, 3, (30,))), batch_size=5)
sizes = DataLoader(TensorDataset(torch.randn(20, 4), torch.randn(20, 2)), batch_size=5)
trunk = nn.Linear(4, 6)
heads = {"kind": nn.Linear(6, 3), "size": nn.Linear(6, 2)}
optimizer = torch.optim.SGD([p for part in (trunk, *heads.values()) for p in part.parameters()], lr=0.1)
def loss_of(name, x, y):
    out = heads[name](trunk(x).tanh())
    return nn.functional.cross_entropy(out, y) if name == "kind" else nn.functional.mse_loss(out, y)
for i, (kind, size) in enumerate(zip(kinds, cycle(sizes))):
    for name, (x, y) in (("kind", kind), ("size", size)):
        (loss_of(name, x, y) / K).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_tasks_whose_data_come_again_are_no_skipped_micro_batches(tmp_path: Path) -> None:
    """What ``cycle`` kept is drawn from no loader, and each task has K micro-batches in each window all the same."""
    result = watch_source(TWO_TASKS, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
