"""Updates that a script discards on purpose are no mistakes; what only looks like one is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from loops_with_places import codes_in
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult

HEAD = """\
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = {loader}
model = nn.Linear(2, 1, bias=False)
nn.init.constant_(model.weight, 0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
K = 3
"""
"""Batches of five rows; the loss is 0.7 times the mean square, so that no number stands for another."""

LOADERS = {
    "DataLoader": "DataLoader(TensorDataset(torch.randn({rows}, 2), torch.randn({rows}, 1)), batch_size=5)",
    "list": "[(torch.randn(5, 2), torch.randn(5, 1)) for _ in range({rows} // 5)]",
}

NOT_FINITE = """\
for i, (a, b) in enumerate(loader):
    spoilt = a * float("inf") if i == 4 else a
    (0.7 * mse_loss(model(spoilt), b) / K).backward()
    if (i + 1) % K == 0:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 9.0)
        if not torch.isfinite(norm):
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()
"""
SPIKE = """\
for i, (a, b) in enumerate(loader):
    (0.7 * mse_loss(model(a), b) / K).backward()
    if (i + 1) % K == 0:
        if i // K not in {rejected}:
            optimizer.step()
        optimizer.zero_grad()
"""
PLAIN = """\
for i, (a, b) in enumerate(loader):
    (0.7 * mse_loss(model(a), b)).backward()
    if i != 5:
        optimizer.step()
    optimizer.zero_grad()
"""
BEGUN_AGAIN = """\
failed = False
for k in range(0, 12, K):
    window = batches[k:k + K]
    while True:
        try:
            for j, (a, b) in enumerate(window):
                if k == 3 and j == 2 and not failed:
                    failed = True
                    raise RuntimeError("out of memory")
                (0.7 * mse_loss(model(a), b) / K).backward()
            break
        except RuntimeError:
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
"""
DROPPED_AND_COUNTED_ANEW = """\
count = 0
for i, (a, b) in enumerate(loader):
    if i == 5:
        optimizer.zero_grad()
        count = 0
        continue
    (0.7 * mse_loss(model(a), b) / K).backward()
    count += 1
    if count == K:
        optimizer.step()
        optimizer.zero_grad()
        count = 0
"""


def script(body: str, rows: int = 60, loader: str = "DataLoader") -> str:
    return HEAD.format(loader=LOADERS[loader].format(rows=rows)) + body


def watched(body: str, folder: Path, rows: int = 60, loader: str = "DataLoader") -> VerifyResult:
    return watch_source(script(body, rows, loader), folder)


def codes(result: VerifyResult) -> set[str]:
    return {d.mistake.code for d in result.diagnosis}


def linted(body: str, rows: int = 60, loader: str = "DataLoader") -> set[str]:
    return set(codes_in(script(body, rows, loader)))


def trained(windows: list[range], loader: str) -> torch.Tensor:
    """The weights after plain steps on large batches, those of these micro-batches of five rows, in float64."""
    torch.manual_seed(0)
    if loader == "list":
        batches = [(torch.randn(5, 2).double(), torch.randn(5, 1).double()) for _ in range(12)]
    else:
        x, y = torch.randn(60, 2).double(), torch.randn(60, 1).double()
        batches = list(zip(x.split(5), y.split(5), strict=True))
    weight = torch.full((2, 1), 0.5, dtype=torch.float64)
    for window in windows:
        a, b = (torch.cat([batches[i][part] for i in window]) for part in (0, 1))
        weight = weight - 0.05 * 0.7 * 2 * a.T @ (a @ weight - b) / len(a)
    return weight.T


REJECTED = {
    "a gradient that is not finite": (NOT_FINITE, [range(3), range(6, 9), range(9, 12)]),
    "a loss that spikes": (SPIKE.format(rejected=(2,)), [range(3), range(3, 6), range(9, 12)]),
    "the first window": (SPIKE.format(rejected=(0,)), [range(3, 6), range(6, 9), range(9, 12)]),
    "the last window": (SPIKE.format(rejected=(3,)), [range(3), range(3, 6), range(6, 9)]),
    "two in a row": (SPIKE.format(rejected=(1, 2)), [range(3), range(9, 12)]),
    "plain training": (PLAIN, [range(i, i + 1) for i in range(12) if i != 5]),
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", REJECTED)
def test_a_window_that_the_script_rejects_is_no_mistake(name: str, loader: str, tmp_path: Path) -> None:
    body, windows = REJECTED[name]
    report = tmp_path / "weights"
    result = watched(f"{body}torch.save(model.weight.detach(), {str(report)!r})\n", tmp_path, loader=loader)
    # The steps that were made are those of plain training on large batches without the rejected data.
    assert torch.allclose(torch.load(report).double(), trained(windows, loader), rtol=1e-4)
    assert (result.verdict, codes(result), len(result.windows)) == (Verdict.EQUIVALENT, set(), len(windows))
    assert result.exit_status == 0
    assert any("discarded by the script" in note for note in result.notes)
    assert linted(body, loader=loader) == set()


def test_a_note_counts_the_windows_that_were_rejected(tmp_path: Path) -> None:
    result = watched(SPIKE.format(rejected=(1, 2)), tmp_path)
    (note,) = [note for note in result.notes if "discarded" in note]
    assert note.startswith(
        "the gradients of 2 complete windows were cleared without a step, at line 16 (before window 1)"
    )


def test_a_window_that_is_rejected_before_a_remainder(tmp_path: Path) -> None:
    body = SPIKE.format(rejected=(2,)).replace("(i + 1) % K == 0", "(i + 1) % K == 0 or i + 1 == len(loader)")
    body = body.replace("/ K)", "/ (K if i < 9 else 2))")
    result = watched(body, tmp_path, rows=55)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set())
    assert [w.micro_batches for w in result.windows] == [3, 3, 2]


@pytest.mark.parametrize("loader", LOADERS)
def test_a_window_that_is_begun_again_with_the_same_data(loader: str, tmp_path: Path) -> None:
    report = tmp_path / "weights"
    body = f"batches = list(loader)\n{BEGUN_AGAIN}torch.save(model.weight.detach(), {str(report)!r})\n"
    result = watched(body, tmp_path, loader=loader)
    windows = [range(3), range(3, 6), range(6, 9), range(9, 12)]
    assert torch.allclose(torch.load(report).double(), trained(windows, loader), rtol=1e-4)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set())
    assert [w.micro_batches for w in result.windows] == [3, 3, 3, 3]
    assert any(note.startswith("2 micro-batches were cleared") and "restarted" in note for note in result.notes)


def test_a_window_that_is_begun_again_with_other_data_and_counted_anew(tmp_path: Path) -> None:
    result = watched(DROPPED_AND_COUNTED_ANEW, tmp_path)
    assert [w.micro_batches for w in result.windows] == [3, 3, 3]
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set())
    assert linted(DROPPED_AND_COUNTED_ANEW) == set()


CLEARED_BEFORE_THE_STEP = """\
for i, (a, b) in enumerate(loader):
    (0.7 * mse_loss(model(a), b) / K).backward()
    if (i + 1) % K == 0:
        optimizer.zero_grad()
        optimizer.step()
"""
CLEARED_EVERY_TIME = """\
for i, (a, b) in enumerate(loader):
    optimizer.zero_grad()
    (0.7 * mse_loss(model(a), b){divided}).backward()
    if (i + 1) % K == 0{flush}:
        optimizer.step()
"""
REMAINDER = """\
for epoch in range(2):
    optimizer.zero_grad()
    for i, (a, b) in enumerate(loader):
        (0.7 * mse_loss(model(a), b) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
STEP_COMES_LATE = """\
for epoch in range(3):
    optimizer.zero_grad()
    for i, (a, b) in enumerate(loader):
        if i and i % K == 0:
            optimizer.step()
            optimizer.zero_grad()
        (0.7 * mse_loss(model(a), b) / K).backward()
"""
"""The last window of every pass is complete, and cleared when the next begins."""


@pytest.mark.parametrize(
    ("body", "rows", "expected"),
    [
        (CLEARED_BEFORE_THE_STEP, 60, {"GA202"}),
        (CLEARED_EVERY_TIME.format(divided=" / K", flush=""), 60, {"GA201"}),
        (CLEARED_EVERY_TIME.format(divided="", flush=""), 60, {"GA201"}),
        (CLEARED_EVERY_TIME.format(divided=" / K", flush=" or i == 3"), 20, {"GA201"}),
        (REMAINDER, 40, {"GA301"}),
    ],
)
def test_what_only_looks_like_a_decision(body: str, rows: int, expected: set[str], tmp_path: Path) -> None:
    result = watched(body, tmp_path, rows=rows)
    assert result.verdict is Verdict.DEVIATES
    assert expected <= codes(result)
    assert not any("discarded" in note or "restarted" in note for note in result.notes)
    assert expected <= linted(body, rows=rows)


def test_what_every_pass_ends_with_is_no_decision(tmp_path: Path) -> None:
    result = watched(STEP_COMES_LATE, tmp_path)
    assert result.verdict is Verdict.DEVIATES
    assert not any("discarded" in note for note in result.notes)
    assert linted(STEP_COMES_LATE)


ENDS_WITH_A_SPIKE = """\
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        loss = 0.7 * mse_loss(model(a), 1000 * b if i == 8 else b)
        (loss / K).backward()
        if (i + 1) % K == 0:
            if {refused}:
                optimizer.zero_grad()
                continue
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("refused", ["loss.item() > 100", "i + 1 == len(loader)"], ids=["its data", "its place"])
def test_why_every_pass_ends_with_a_refused_window_is_unknown(refused: str, loader: str, tmp_path: Path) -> None:
    result = watched(ENDS_WITH_A_SPIKE.format(refused=refused), tmp_path, loader=loader, rows=45)
    assert (result.verdict, codes(result)) == (Verdict.INCONCLUSIVE, set())
    assert [w.micro_batches for w in result.windows] == [3, 3, 3, 3]
    assert result.reason.endswith("run the loop on the data in another order (cleared at line 17)")


def test_the_reason_counts_what_was_lost_and_not_what_was_rejected(tmp_path: Path) -> None:
    body = REMAINDER.replace(
        "            optimizer.step()", "            if epoch or i // K != 1:\n                optimizer.step()"
    )
    result = watched(body, tmp_path, rows=55)
    assert [w.micro_batches for w in result.windows] == [3, 3, 3, 3, 3]
    assert (
        result.reason
        == "4 micro-batches never reached a step, in addition to those that the script discarded on purpose"
    )
    assert codes(result) == {"GA301"}


NEVER_STEPPED = """
import torch
K = {k}
model, critic = torch.nn.Linear(4, 3), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
for i in range(5):
    x, y = torch.randn(2, 4), torch.randn(2, 3)
    critic(x).pow(2).mean().backward()
    critic_optimizer.step()
    critic_optimizer.zero_grad()
    (torch.nn.functional.mse_loss(model(x), y) / K).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
    {clear}
"""


@pytest.mark.parametrize(
    ("k", "clear", "verdict"),
    [(7, "optimizer.zero_grad()", "inconclusive"), (7, "", "inconclusive"), (5, "", "equivalent")],
)
def test_steps_of_one_optimizer_say_nothing_of_another_that_never_stepped(
    k: int, clear: str, verdict: str, tmp_path: Path
) -> None:
    result = watch_source(NEVER_STEPPED.format(k=k, clear=clear), tmp_path)
    assert result.verdict.value == verdict
    if verdict == "inconclusive":
        assert result.reason == (
            "5 micro-batches (line 12) gave gradients to SGD alone, whose step() was never called: run the loop on "
            "more data, until it steps"
        )


CLEARED_BY_HAND = """
import torch
K = 3
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(2, 4), torch.randn(2, 3)) for _ in range(9)]
data[{bad}][1].fill_(1000.0)
for i, (x, y) in enumerate(data):
    loss = torch.nn.functional.mse_loss(model(x), y)
    (loss / K).backward()
    if (i + 1) % K == 0:
        if loss.item() < 200.0:
            optimizer.step()
        for p in model.parameters():
            p.grad = None
"""


@pytest.mark.parametrize("bad", [5, 8])
def test_a_window_that_is_cleared_by_hand_is_rejected_the_last_one_too(bad: int, tmp_path: Path) -> None:
    """After the last one comes nothing that is watched."""
    result = watch_source(CLEARED_BY_HAND.format(bad=bad), tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())


RESET = """
import torch
K = 3
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(56, 4), torch.randint(0, 2, (56,))
x[17] = {bad}
filled = 0
for xs, ys in zip(x.split(4), y.split(4)):
    loss = torch.nn.functional.cross_entropy(model(xs), ys)
    if not torch.isfinite(loss):
        filled = 0
        {clear}
        continue
    (loss / K).backward()
    filled += 1
    if filled == K:
        optimizer.step()
        optimizer.zero_grad()
        filled = 0
"""


@pytest.mark.parametrize(
    ("bad", "clear", "verdict"),
    [
        ('float("inf")', "optimizer.zero_grad()", "equivalent"),
        # The window after it holds one micro-batch too many.
        ('float("inf")', "pass", "deviates"),
        # Two are left over at the end.
        ("0.0", "pass", "deviates"),
    ],
)
def test_a_window_that_is_begun_again_in_its_own_loop_has_lost_nothing(
    bad: str, clear: str, verdict: str, tmp_path: Path
) -> None:
    assert watch_source(RESET.format(bad=bad, clear=clear), tmp_path).verdict.value == verdict


REFUSED_AT_THE_END = """
import torch
K = 4
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(1, 4), torch.randn(1, 3)) for _ in range({n})]
data[-1][1].fill_({last})
def clear():
    for p in model.parameters():
        {clear}
for epoch in range(2):
    for i, (x, y) in enumerate(data):
        raw = torch.nn.functional.smooth_l1_loss(model(x), y)
        if raw.item() > 200.0:
            clear()
            continue
        (raw / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            clear()
    {after}
"""


@pytest.mark.parametrize(
    ("n", "last", "clear", "after", "verdict"),
    [
        (8, 1000.0, "p.grad = None", "pass", "inconclusive"),
        (8, 1000.0, "optimizer.zero_grad()", "pass", "equivalent"),
        (7, 0.0, "p.grad = None", "clear()", "inconclusive"),
        (7, 0.0, "p.grad.zero_()", "clear()", "inconclusive"),
        (7, 0.0, "optimizer.zero_grad()", "clear()", "deviates"),
        (7, 0.0, "p.grad = None", "pass", "deviates"),
    ],
)
def test_what_is_cleared_by_hand_at_the_end_of_a_pass_through_a_list_is_left_open(
    n: int, last: float, clear: str, after: str, verdict: str, tmp_path: Path
) -> None:
    """That a pass has ended is shown by the counter alone: a list is not seen to begin anew."""
    source = REFUSED_AT_THE_END.format(n=n, last=last, clear=clear, after=after)
    result = watch_source(source, tmp_path)
    assert result.verdict.value == verdict
    if verdict == "inconclusive":
        assert result.reason is not None and "cleared by hand" in result.reason


def test_steps_that_a_counter_decides_on_are_not_made_at_every_micro_batch(tmp_path: Path) -> None:
    """Of the third window one of two micro-batches was skipped, and the last one holds the last micro-batch."""
    source = """
import torch
K = 2
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(2, 4), torch.randn(2, 3)) for _ in range(5)]
for i, (x, y) in enumerate(data):
    if i == 2:
        optimizer.zero_grad()
        continue
    (torch.nn.functional.mse_loss(model(x), y) / K).backward()
    if (i + 1) % K == 0 or i + 1 == len(data):
        optimizer.step()
        optimizer.zero_grad()
"""
    result = watch_source(source, tmp_path)
    assert {d.mistake.code for d in result.diagnosis} == {"GA103", "GA303"}


@pytest.mark.parametrize("loader", LOADERS)
def test_a_window_that_is_rejected_for_its_last_micro_batch_before_that_runs(loader: str, tmp_path: Path) -> None:
    """Of 11 micro-batches the ninth has a spike: the third window is rejected, two are the rest of the pass."""
    body = """
for i, (x, y) in enumerate(loader):
    loss = mse_loss(model(x), y)
    if i == 8:
        optimizer.zero_grad()
        continue
    (loss / min(K, 11 - i // K * K)).backward()
    if (i + 1) % K == 0 or i == 10:
        optimizer.step()
        optimizer.zero_grad()
"""
    result = watched(body, tmp_path, rows=55, loader=loader)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())


AT_THE_END = """\
for epoch in range({epochs}):
    for i, (a, b) in enumerate(batches):
        raw = 0.7 * mse_loss(model(a), b)
        if raw.item() > 100.0:
            {answer}
            continue
        (raw / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
    {after}
"""
SPIKES_LAST = "batches = [*loader]\nbatches[8] = batches[8][0] + 90.0, batches[8][1]\n"


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("loader", LOADERS)
def test_the_last_window_of_the_data_is_rejected_where_a_micro_batch_of_it_was_refused(
    loader: str, epochs: int, tmp_path: Path
) -> None:
    body = SPIKES_LAST + AT_THE_END.format(epochs=epochs, answer="optimizer.zero_grad()", after="pass")
    result = watched(body, tmp_path, rows=45, loader=loader)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set())
    assert [w.micro_batches for w in result.windows] == [3, 3] * epochs


@pytest.mark.parametrize("epochs", [1, 2])
def test_what_is_cleared_after_the_loop_is_lost_whatever_was_refused(epochs: int, tmp_path: Path) -> None:
    body = SPIKES_LAST + AT_THE_END.format(epochs=epochs, answer="pass", after="optimizer.zero_grad()")
    result = watched(body, tmp_path, rows=45, loader="list")
    assert (result.verdict, codes(result)) == (Verdict.DEVIATES, {"GA301"})


BY_HAND = "[setattr(p, 'grad', None) for p in model.parameters()]"


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize(("answer", "after"), [(BY_HAND, "pass"), ("pass", BY_HAND)])
def test_what_is_cleared_by_hand_at_the_end_of_the_data_was_refused_or_lost(
    answer: str, after: str, epochs: int, tmp_path: Path
) -> None:
    body = SPIKES_LAST + AT_THE_END.format(epochs=epochs, answer=answer, after=after)
    result = watched(body, tmp_path, rows=45, loader="list")
    assert (result.verdict, codes(result)) == (Verdict.INCONCLUSIVE, set())
    assert result.reason.endswith("clear them with zero_grad() to see which")


def test_a_remainder_that_nothing_clears_is_lost_however_others_are_cleared(tmp_path: Path) -> None:
    body = AT_THE_END.format(epochs=1, answer="pass", after="pass").replace("optimizer.zero_grad()", BY_HAND)
    result = watched("batches = [*loader][:8]\n" + body, tmp_path, rows=45, loader="list")
    assert (result.verdict, codes(result)) == (Verdict.DEVIATES, {"GA301"})
