"""What both engines say of loops that are easily read wrong; campaigns found one of them to do so."""

from __future__ import annotations

from pathlib import Path

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in
from watching import watch_source

from gradcheck_accum.lint import lint_source
from gradcheck_accum.lint.examination.examine import ledgers_of
from gradcheck_accum.results.verdict import Verdict

HEAD = """\
import torch
from torch import nn
torch.manual_seed(0)
K = 2
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
loader = [(torch.randn(3, 4), torch.randint(0, 3, (3,))) for _ in range({count})]
"""


def judged(body: str, folder: Path, *, count: int = 6) -> tuple[Verdict, set[str], set[str]]:
    """verify's verdict and diagnosis, and lint's findings."""
    source = HEAD.format(count=count) + body
    result = watch_source(source, folder, reference="ledger")
    return (
        result.verdict,
        {d.mistake.code for d in result.diagnosis},
        set(codes_in(source)),
    )


STEP = """\
if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()"""
"""What a loop that is written with ``{step}`` does at the end of a window."""


LOOPS = labelled_loops("""\
## Divided by K, by rows or by units
#: 6 batches, deviates, GA102: divided by K and by the rows of the batch, by any of its names
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / K / len(x)
    loss.backward()
    {step}

#: 6 batches, deviates, GA101: a list of batches that is counted through by hand
i = 0
while i < len(loader):
    x, y = loader[i]
    loss = criterion(model(x), y)
    loss.backward()
    {step}
    i += 1

#: 6 batches, equivalent: each loss weighted by its share of the units of its window, which are counted from the list
units = [y.numel() for _, y in loader]
totals = [sum(units[s:s + K]) for s in range(0, len(units), K)]
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) * (y.numel() / totals[i // K])
    loss.backward()
    {step}

#: 2 batches, equivalent: a sum over the targets that count, which are as many as a micro-batch has rows
criterion = nn.CrossEntropyLoss(reduction="sum")
loader = [(torch.randn(3, 4), torch.tensor(y)) for y in ([-100, 1, 2], [-100, -100, 0])]
total = sum(int((y != -100).sum()) for _, y in loader)
for x, y in loader:
    loss = criterion(model(x), y) / total
    loss.backward()
optimizer.step()
optimizer.zero_grad()

#: 6 batches, deviates, ?: a sum over the window's own count, of which a micro-batch is skipped
criterion = nn.CrossEntropyLoss(reduction="sum")
loader = [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (3, 2, 1, 2, 3, 4)]
totals = [5, 3, 7]
for i, (x, y) in enumerate(loader):
    if i == 2:
        continue
    loss = criterion(model(x), y) / totals[i // K]
    loss.backward()
    {step}

#: 1 batch, deviates, GA104: a mean of means with a loader's last batch, which is short
data = torch.utils.data.TensorDataset(torch.randn(7, 4), torch.randint(0, 3, (7,)))
loader = torch.utils.data.DataLoader(data, batch_size=2)
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / K
    loss.backward()
    {step}

#: 6 batches, deviates, GA104, GA201: a window of unlike micro-batches of which only the last is left
loader = [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (4, 4, 1, 3, 4, 1)]
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = criterion(model(x), y) / 3
    loss.backward()
    if (i + 1) % 3 == 0:
        optimizer.step()

#: 1 batch, deviates, GA102: divided by the length of the window and by its four rows, beside a number modulo 4
loader = [(torch.randn(4, 4), torch.randint(0, 3, (4,))) for _ in range(5)]
for epoch in range(2):
    for start in range(0, len(loader), K):
        window = loader[start:start + K]
        for x, y in window:
            loss = criterion(model(x), y) / len(window) / len(x)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    size = 2 * 3 % 4

## Which micro-batches a window holds
#: 6 batches, deviates, GA304: a step at every micro-batch, beside a test of every K that only prints
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / K
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if (i + 1) % K == 0:
        print(i)

#: 6 batches, deviates, GA303: a micro-batch that is skipped, and that is no remainder
for i, (x, y) in enumerate(loader):
    if i == 2:
        continue
    loss = criterion(model(x), y) / K
    loss.backward()
    {step}

#: 8 batches, deviates, GA103, GA302: windows that end one early, with a short one at the end
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / 4
    loss.backward()
    if i % 4 == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()

#: 10 batches, deviates, GA302: windows that end one early and are mostly short, divided by their true lengths
for i, (x, y) in enumerate(loader, 1):
    loss = criterion(model(x), y) * (1 / min(4, len(loader) - (i - 1) // 4 * 4))
    loss.backward()
    if (i + 1) % 4 == 0 or i == len(loader):
        optimizer.step()
        optimizer.zero_grad()

#: 4 batches, deviates, GA302: losses that are weighted for the windows before they end one early
loader = [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (2, 4, 2, 1)]
totals = [6, 3]
for i, (x, y) in enumerate(loader, 1):
    loss = criterion(model(x), y) * (len(y) / totals[(i - 1) // K])
    loss.backward()
    if (i + 1) % K == 0 or i == len(loader):
        optimizer.step()
        optimizer.zero_grad()

#: 8 batches, deviates, GA302: windows one longer than K, and the last of K
count = 0
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / K
    loss.backward()
    count += 1
    if count > K or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
        count = 0

#: 8 batches, deviates, GA102, GA302: windows of five that are divided by four and by the three rows of a batch
loader = loader[:8]
count = 0
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / 4 / len(x)
    loss.backward()
    count += 1
    if count > 4 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
        count = 0

## Remainders
#: 5 batches, deviates, GA301: a remainder that leaks into the next pass
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / K
        loss.backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()

#= 5 batches, deviates, GA301: a remainder that leaks, beside a step whose gradient has overflowed
         loss = criterion(model(x), y) / K
+        if epoch == 1 and i == 2:
+            loss = loss * float("inf")

#: 6 batches, deviates, GA301, GA302: steps one early, of gradients that are divided by hand, and a remainder that is
#: not
for i, (x, y) in enumerate(loader):
    criterion(model(x), y).backward()
    if i % K == 0:
        for p in model.parameters():
            p.grad.div_(K)
        optimizer.step()
        optimizer.zero_grad()

## Gradients divided by hand
#: 8 batches, inconclusive: gradients that are divided by hand, of which some have overflowed
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y)
    if i >= 4:
        loss = loss * float("inf")
    loss.backward()
    if (i + 1) % K == 0:
        for p in model.parameters():
            p.grad.div_(K)
        optimizer.step()
        optimizer.zero_grad()

#= 8 batches, equivalent: gradients of zero that are divided by hand
-    loss = criterion(model(x), y)
-    if i >= 4:
-        loss = loss * float("inf")
+    loss = criterion(model(x), y) * (i < 4)

## Clearing and clips
#: 3 batches, deviates, GA201: a single window that is cleared after each of its micro-batches
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / 3
    loss.backward()
    if (i + 1) % 3 == 0:
        optimizer.step()
    optimizer.zero_grad()

#: 5 batches, deviates, GA301, GA401: a clip at every micro-batch, and a remainder that the next pass throws away with
#: its clip
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        if i % K == 0:
            optimizer.zero_grad()
        loss = criterion(model(x), y) / K
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        if (i + 1) % K == 0:
            optimizer.step()

#: 5 batches, equivalent, GA402: a clip behind the step of a flush, with which the run ends
for i, (x, y) in enumerate(loader):
    criterion(model(x), y).div(min(K, len(loader) - i // K * K)).backward()
    if (i + 1) % K == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
if len(loader) % K:
    optimizer.step()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.zero_grad()

## Losses that are kept or reported
#: 8 batches, equivalent, GA801: losses that are kept before they are scaled
total = 0.0
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y)
    scaler.scale(loss / K).backward()
    total = total + loss
    if (i + 1) % K == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

#: 8 batches, equivalent, GA801: losses that are kept, beside two optimizers of one window
total = 0.0
head = nn.Linear(3, 3)
other = torch.optim.SGD(head.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    loss = criterion(head(model(x)), y) / K
    loss.backward()
    total = total + loss
    if (i + 1) % K == 0:
        optimizer.step()
        other.step()
        optimizer.zero_grad()
        other.zero_grad()

#: 8 batches, equivalent, GA801: losses that are kept over all windows of an iterator
import itertools
kept = 0.0
batches = iter(loader)
while window := list(itertools.islice(batches, K)):
    for x, y in window:
        loss = criterion(model(x), y) / K
        loss.backward()
        kept = kept + loss
    optimizer.step()
    optimizer.zero_grad()

#: 1 batch, equivalent, GA802 (lint): the mean of divided losses, over a loader that is drawn from by hand
import itertools
data = torch.utils.data.TensorDataset(torch.randn(45, 4), torch.randint(0, 3, (45,)))
loader = torch.utils.data.DataLoader(data, batch_size=3)
running = 0.0
batches = iter(loader)
while window := list(itertools.islice(batches, 4)):
    for x, y in window:
        loss = criterion(model(x), y) / len(window)
        loss.backward()
        running += loss.item()
    optimizer.step()
    optimizer.zero_grad()
print("mean loss", running / len(loader))

#: 5 batches, deviates, GA203, GA802 (lint): the mean of divided losses, beside gradients that are never cleared
running = 0.0
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / min(K, len(loader) - i // K * K)
        loss.backward()
        running += loss.item()
        if (i + 1) % K == 0 or i + 1 == len(loader):
            optimizer.step()
print("mean loss", running / (2 * len(loader)))

## Schedules and averages
#: 5 batches, equivalent, GA603: a schedule for the micro-batches that moves with the steps, of an odd number of
#: micro-batches
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader))
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / min(K, len(loader) - i // K * K)
    loss.backward()
    if (i + 1) % K == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

#: 10 batches, equivalent, GA603: a schedule for the micro-batches that moves with the steps, and with the flush too
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2 * len(loader))
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / min(3, len(loader) - i // 3 * 3)
        loss.backward()
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    if len(loader) % 3:
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

#: 2 batches, equivalent: a schedule that runs to its end in one window
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader))
for x, y in loader:
    loss = criterion(model(x), y) / K
    loss.backward()
    scheduler.step()
optimizer.step()
optimizer.zero_grad()

#: 8 batches, equivalent, GA601 (verify): a schedule at every micro-batch, beside two optimizers of one window
head = nn.Linear(3, 3)
other = torch.optim.SGD(head.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
for i, (x, y) in enumerate(loader):
    loss = criterion(head(model(x)), y) / K
    loss.backward()
    if (i + 1) % K == 0:
        optimizer.step()
        other.step()
        optimizer.zero_grad()
        other.zero_grad()
    scheduler.step()

#: 6 batches, equivalent: a schedule that is made for the micro-batches and moves with them, beside the backwards
import itertools
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2 * len(loader))
for epoch in range(2):
    batches = iter(loader)
    while window := list(itertools.islice(batches, K)):
        for x, y in window:
            loss = criterion(model(x), y) / K
            loss.backward()
            scheduler.step()
        optimizer.step()
        optimizer.zero_grad()

#: 4 batches, equivalent, GA601: a schedule at every micro-batch, beside a step in a function that nothing calls
import itertools
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader) // K)
batches = iter(loader)
while window := list(itertools.islice(batches, K)):
    for x, y in window:
        loss = criterion(model(x), y) / K
        loss.backward()
        scheduler.step()
        def never_called():
            optimizer.step()
    optimizer.step()
    optimizer.zero_grad()

#: 5 batches, equivalent, GA602: an average of the weights at every micro-batch of windows that are cut from a list
average = torch.optim.swa_utils.AveragedModel(model)
for start in range(0, len(loader), K):
    window = loader[start:start + K]
    for x, y in window:
        loss = criterion(model(x), y) / len(window)
        loss.backward()
        average.update_parameters(model)
    optimizer.step()
    optimizer.zero_grad()

#= 5 batches, equivalent, GA602: an average at every micro-batch, beside a step in a block that never runs
         average.update_parameters(model)
+        if False:
+            optimizer.step()
""")


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.name)
def test_both_engines_judge_it_by_what_it_does(loop: LabelledLoop, tmp_path: Path) -> None:
    batches, verdict, *codes = loop.label.split(", ")
    got, diagnosed, found = judged(loop.source.replace("{step}", STEP), tmp_path, count=int(batches.split()[0]))
    assert got is Verdict(verdict)
    if codes == ["?"]:
        return
    assert diagnosed == loop.codes_of("verify")
    # What the label has of verify alone, lint may find too.
    assert loop.codes_of("lint") <= found <= loop.codes_of("lint") | diagnosed


@pytest.mark.parametrize(
    "window",
    ["totals[i // K]", "sum(len(y) for _, y in batches[i // K * K:i // K * K + K])"],
    ids=["counted first", "a slice of the list"],
)
def test_lint_knows_the_rows_of_a_last_batch_that_is_short(window: str) -> None:
    source = (
        HEAD.format(count=1)
        + f"""\
data = torch.utils.data.TensorDataset(torch.randn(7, 4), torch.randint(0, 3, (7,)))
loader = torch.utils.data.DataLoader(data, batch_size=2)
criterion = nn.CrossEntropyLoss(reduction="sum")
units = [len(y) for _, y in loader]
totals = [sum(units[s:s + K]) for s in range(0, len(units), K)]
batches = list(loader)
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / {window}
    loss.backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
    )
    (ledger, *_) = ledgers_of(source, "train.py")
    terms = [term for w in ledger.windows for e in w.entries for term in e.backward.terms]
    assert [term.units for term in terms] == [2, 2, 2, 1]
    assert [factor.value for term in terms for factor in term.factors] == [1 / 4, 1 / 4, 1 / 3, 1 / 3]


def test_lint_claims_no_rows_of_a_last_batch_where_the_data_have_no_known_length() -> None:
    source = (
        HEAD.format(count=1)
        + """\
loader = torch.utils.data.DataLoader(load_data(), batch_size=2)
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / K
    loss.backward()
    if (i + 1) % K == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
"""
    )
    assert "GA104" not in codes_in(source)


@pytest.mark.parametrize("batch", ["batches[i]", "batches[-len(batches) + i]"])
def test_a_list_of_batches_that_is_counted_through_ends_short_for_lint_too(batch: str, tmp_path: Path) -> None:
    body = f"""\
data = torch.utils.data.TensorDataset(torch.randn(7, 4), torch.randint(0, 3, (7,)))
batches = list(torch.utils.data.DataLoader(data, batch_size=2))
units = [len(y) for _, y in batches]
totals = [sum(units[s:s + K]) for s in range(0, len(units), K)]
criterion = nn.CrossEntropyLoss(reduction="sum")
for i in range(len(batches)):
    x, y = {batch}
    loss = criterion(model(x), y) / totals[i // K]
    loss.backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
    assert judged(body, tmp_path, count=1) == (Verdict.EQUIVALENT, set(), set())
    means = body.replace("totals[i // K]", "K").replace('(reduction="sum")', "()")
    assert judged(means, tmp_path, count=1) == (Verdict.DEVIATES, {"GA104"}, {"GA104"})


UNDIVIDED = """\
for _ in range({passes}):
    for i, (x, y) in enumerate(loader, 1):
        criterion(model(x), y).backward()
        if {test}:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_short_windows_around_one_that_nothing_divides_are_no_leak(tmp_path: Path) -> None:
    # Windows of 2, 3 and 2: the source counts to 3, and the first window closes one early.
    body = UNDIVIDED.format(passes=1, test="(i + 1) % 3 == 0 or i == len(loader)")
    assert judged(body, tmp_path, count=7) == (Verdict.DEVIATES, {"GA101", "GA302"}, {"GA101", "GA302"})


def test_a_leak_shows_in_a_list_though_nothing_is_divided(tmp_path: Path) -> None:
    # Windows of 2, 2, 3 and 2, and 1 left: passes of 5.
    body = UNDIVIDED.format(passes=2, test="i % K == 0")
    assert judged(body, tmp_path, count=5) == (Verdict.DEVIATES, {"GA101", "GA301"}, {"GA101", "GA301"})


TWICE = """\
{numbers}
def scaled(loss, parts):
    return loss / parts
count = 0
for i, (x, y) in enumerate(loader):
    loss = {loss}
    loss.backward()
    count += 1
    if {test}:
        optimizer.step()
        optimizer.zero_grad()
        count = 0
"""


@pytest.mark.parametrize(
    ("numbers", "loss", "test", "codes"),
    [
        # A literal that a function is given comes to 1/5 of each of five, and the three rows of each divide it again.
        ("", "scaled(criterion(model(x), y), 5) / len(x)", "count == 5", {"GA102"}),
        # Whoever divides by K needs no second number for it: the step comes one late, and the objective has the other.
        ("K = 4; weight = 4", "criterion(model(x), y) / K / weight", "count > K", {"GA302"}),
        ("K = 4; weight = 4", "criterion(model(x), y) / weight / K", "count > K", {"GA302"}),
        # 15 is as many rows as a whole window has, and comes from elsewhere; the last window has fewer.
        ("K = 5; weight = 15", "criterion(model(x), y) / K / weight", "count == K or i == 6", {"GA103"}),
    ],
)
def test_a_second_divisor_beside_k(numbers: str, loss: str, test: str, codes: set[str], tmp_path: Path) -> None:
    body = TWICE.format(numbers=numbers, loss=loss, test=test)
    count = 10 if "K" not in numbers else 7 if "i ==" in test else 5
    assert judged(body, tmp_path, count=count) == (Verdict.DEVIATES, codes, codes)


@pytest.mark.parametrize(
    ("numbers", "codes"),
    # Three is as many elements as a row of outputs has, and two as many rows as a window has: of unlike things.
    [("heads = 3; terms = 2", set()), ("heads = 3; terms = 5", set())],
)
def test_a_mean_times_its_units_over_rows_is_no_sum(numbers: str, codes: set[str], tmp_path: Path) -> None:
    body = f"""\
{numbers}
criterion = nn.MSELoss()
for i in range(len(loader)):
    loss = heads * criterion(model(torch.randn(1, 4)), torch.randn(1, 3)) / terms
    loss.backward()
    if (i + 1) % K == 0 or i + 1 == len(loader):
        for p in model.parameters():
            p.grad.div_(i % K + 1)
        optimizer.step()
        optimizer.zero_grad()
"""
    assert judged(body, tmp_path, count=5) == (Verdict.EQUIVALENT, codes, codes)


def test_two_constants_that_come_to_a_sum_over_a_window_are_no_division(tmp_path: Path) -> None:
    # Two rows of each of two, and four of both: other names than those of a batch, and no division by K.
    body = """\
{numbers}
criterion = nn.MSELoss()
for i in range(len(loader)):
    loss = {loss}
    loss.backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
    data = "criterion(model(torch.randn(2, 4)), torch.randn(2, 3))"
    by_name = body.format(numbers="heads = 2; terms = 4", loss=f"heads * {data} / terms")
    assert judged(by_name, tmp_path) == (Verdict.INCONCLUSIVE, set(), set())
    by_size = body.format(numbers="batch_size = 2; effective = 4", loss=f"batch_size * {data} / effective")
    assert judged(by_size, tmp_path) == (Verdict.EQUIVALENT, set(), set())


@pytest.mark.parametrize(
    ("scheduled", "codes"),
    # As long as there are micro-batches, it is too long for the optimizer that steps at every second, and right for
    # the other.
    [("optimizer", {"GA603"}), ("critic_optimizer", set())],
)
def test_a_schedule_beside_an_optimizer_that_steps_at_every_micro_batch(
    scheduled: str, codes: set[str], tmp_path: Path
) -> None:
    body = f"""\
critic = nn.Linear(4, 1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR({scheduled}, T_max=len(loader))
for i, (x, y) in enumerate(loader):
    (criterion(model(x), y) / K).backward()
    critic(x).pow(2).mean().backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
        {"scheduler.step()" if scheduled == "optimizer" else "pass"}
    if (i + 1) % 1 == 0:
        critic_optimizer.step()
        critic_optimizer.zero_grad()
        {"scheduler.step()" if scheduled != "optimizer" else "pass"}
"""
    assert judged(body, tmp_path, count=8) == (Verdict.EQUIVALENT, codes, codes)


REJECTING = """\
for _ in range(2):
    for i, (x, y) in enumerate(loader):
        {rejects}
        criterion(model(x), y).backward()
        if (i + 1) % K == 0 or i + 1 == len(loader):
            for p in model.parameters():
                p.grad.div_(i % K + 1)
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_window_that_is_rejected_before_the_rest_of_its_pass(tmp_path: Path) -> None:
    # Of five, the fourth is rejected and the third with it: the counter, which restarts, says that the fifth is the
    # rest of its pass, in both passes.
    rejects = "if i == 3: optimizer.zero_grad(); continue"
    verdict, codes, _ = judged(REJECTING.format(rejects=rejects), tmp_path, count=5)
    assert (verdict, codes) == (Verdict.EQUIVALENT, set())
    # Where the third is cleared and the fourth runs, the step that counts two of them gets one.
    late = "if i == 3: optimizer.zero_grad()"
    verdict, codes, _ = judged(REJECTING.format(rejects=late), tmp_path, count=5)
    assert verdict is Verdict.DEVIATES


@pytest.mark.parametrize("scale", [3, 5])
def test_a_constant_that_equals_k_beside_the_least_of_k_and_the_rest(scale: int, tmp_path: Path) -> None:
    body = f"""\
K, SCALE = 3, {scale}
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    (criterion(model(x), y) / min(K, len(loader) - i // K * K) / SCALE).backward()
    if (i + 1) % K == 0:
        optimizer.step()
if len(loader) % K:
    optimizer.step()
"""
    # Windows of three, and one of one: lint took the 1 that is left of K for a K that is stated.
    assert judged(body, tmp_path, count=4) == (Verdict.DEVIATES, {"GA201"}, {"GA201"})


@pytest.mark.parametrize("name", ["K", "grad_accum"])
def test_a_name_of_k_that_equals_the_number_of_unlike_terms(name: str, tmp_path: Path) -> None:
    body = f"""\
{name} = 2
count = 0
for x, y in loader:
    out = model(x)
    loss = (criterion(out, y) + out.pow(2).mean()) / {name}
    loss.backward()
    count += 1
    if count > {name}:
        optimizer.step()
        optimizer.zero_grad()
        count = 0
"""
    # Two losses of unlike kinds, divided by K: windows of three that are divided by two.
    assert judged(body, tmp_path, count=6) == (Verdict.DEVIATES, {"GA302"}, {"GA302"})


NEVER_CLEARED = """\
scaler = torch.amp.GradScaler("cpu", init_scale={scale})
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / K
        scaler.scale(loss).backward()
        if (i + 1) % K == 0:
            optimizer.step()  # the first that uses what was left is in its second turn
    if len(loader) % K:
        optimizer.step()
"""


@pytest.mark.parametrize("scale", [64.0, 2.0**96])
def test_gradients_that_are_never_cleared_are_reported_where_a_step_first_uses_them(
    scale: float, tmp_path: Path
) -> None:
    # With the second scale, the squares of the first gradients overflow already.
    source = HEAD.format(count=5) + NEVER_CLEARED.format(scale=scale)
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "the first that uses" in text)
    result = watch_source(source, tmp_path)
    assert len(result.windows) == 6
    assert result.verdict is not Verdict.EQUIVALENT
    assert [d.where.line for d in result.diagnosis if d.mistake.code == "GA203"] == [line]
    assert [f.where.line for f in lint_source(source, "train.py") if f.mistake.code == "GA203"] == [line]


SUM_AND_PENALTY = """\
criterion = nn.CrossEntropyLoss(reduction="sum")
loader = [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in {rows}]
for start in range(0, len(loader), K):
    window = loader[start:start + K]
    for x, y in window:
        raw = criterion(model(x), y) + 0.1 * sum(p.pow(2).sum() for p in model.parameters())
        loss = raw / sum(len(t) for _, t in window)
        loss = loss{second}
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("second", "codes"), [(" / K", ["GA102"]), ("", [])])
@pytest.mark.parametrize("rows", ["(3, 2, 4, 3, 1)", "(3, 2, 4, 3)"])
def test_a_penalty_that_is_divided_by_the_units_of_a_sum_shows_no_remainder(
    rows: str, second: str, codes: list[str], tmp_path: Path
) -> None:
    result = watch_source(HEAD.format(count=1) + SUM_AND_PENALTY.format(rows=rows, second=second), tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes
    # The sum is divided twice: where its gradient can be told apart from the penalty's, it deviates.
    assert result.verdict in ((Verdict.INCONCLUSIVE, Verdict.DEVIATES) if codes else (Verdict.INCONCLUSIVE,))


TWO_SUMS = """\
ROWS = {number}
decoder, encoder = nn.Linear(4, 12), nn.Linear(12, 4)
weights = [*decoder.parameters(), *encoder.parameters()]
optimizer = torch.optim.SGD(weights, lr=0.01)
done = 0
for x in torch.randn(48, 12).split(6):
    code = encoder(x)
    mu, spread = code.chunk(2, dim=1)
    fit = nn.functional.mse_loss(decoder(code), x, reduction="sum")
    cost = 0.3 * torch.sum(mu.square() + spread.exp() - spread)
    (({loss}) / ROWS).backward()
    done += len(x)
    if done % 12 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("loss", "number", "verdict"),
    [
        # 6 rows of 2 numbers each, and 12 rows in a window: the other term, of 12 numbers in each row, shows which.
        ("fit + cost", 12, Verdict.EQUIVALENT),
        ("cost", 12, Verdict.INCONCLUSIVE),
        ("fit", 12, Verdict.EQUIVALENT),
        # By each micro-batch's rows, both are twice too large.
        ("fit + cost", 6, Verdict.DEVIATES),
    ],
)
def test_a_constant_that_is_a_micro_batchs_numbers_and_its_windows_rows(
    loss: str, number: int, verdict: Verdict, tmp_path: Path
) -> None:
    source = HEAD.format(count=1) + TWO_SUMS.format(loss=loss, number=number)
    result = watch_source(source, tmp_path)
    assert result.verdict is verdict, result.reason
    assert bool(result.diagnosis) == (verdict is Verdict.DEVIATES)
