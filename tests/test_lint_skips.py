"""GA303: micro-batches that give no gradient now and then, and the counters that count them all the same or do not."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

HEAD = """\
import math
import torch
from torch import nn

"""
SKIPS = {
    "a loss that is not finite": """
        loss = criterion(model(x), y) / 3
        if not torch.isfinite(loss):
            {way_out}
        loss.backward()
""",
    "a number that is not finite": """
        loss = criterion(model(x), y) / 3
        number = loss.item()
        if math.isnan(number) or math.isinf(number):
            print("skipped", number)
            {way_out}
        loss.backward()
""",
    "a loss that is too great": """
        loss = criterion(model(x), y)
        if loss.item() > 50:
            {way_out}
        (loss / 3).backward()
""",
    "a loss that was found to be too great": """
        loss = criterion(model(x), y) / 3
        is_usable = loss < limit
        if is_usable:
            loss.backward()
        else:
            print(i)
            {way_out}
""",
    "a loss that is not finite, and others": """
        loss = criterion(model(x), y) / 3
        if not torch.isfinite(loss):
            {way_out}
        else:
            loss.backward()
""",
    "an error": """
        try:
            loss = criterion(model(x), y) / 3
            loss.backward()
        except RuntimeError as error:
            print(error)
            {way_out}
""",
    "an error of one kind": """
        try:
            loss = criterion(model(x), y) / 3
            loss.backward()
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            torch.cuda.empty_cache()
            {way_out}
""",
}
COUNTED = """\
def train(model, loader, optimizer, criterion):
    assert len(loader) % 3 == 0
    for i, (x, y) in enumerate(loader):
{skip}
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
RAN = """\
def train(model, loader, optimizer, criterion, epochs):
    ran = 0
    for epoch in range(epochs):
        for x, y in loader:
{skip}
            ran += 1
            if ran % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
"""
by_skip = pytest.mark.parametrize("skip", SKIPS.values(), ids=SKIPS.keys())


def codes(source: str) -> list[str]:
    return sorted(codes_in(HEAD + source))


@by_skip
def test_a_micro_batch_that_is_skipped_and_counted(skip: str) -> None:
    source = HEAD + COUNTED.format(skip=skip.format(way_out="continue"))
    (found,) = lint_source(source, "train.py")
    assert found.mistake.code == "GA303"
    assert found.text == "optimizer.step()"
    asks = ("if not", "if math", "if loss", "if is_usable", "try")
    (line,) = (n for n, text in enumerate(source.splitlines(), 1) if text.strip().startswith(asks))
    assert f"a micro-batch that is skipped (at line {line}) is still counted" in found.message


@by_skip
def test_a_counter_of_those_that_ran(skip: str) -> None:
    inner = "".join(f"    {line}\n" for line in skip.format(way_out="continue").splitlines())
    assert codes(RAN.format(skip=inner)) == []


@by_skip
@pytest.mark.parametrize("way_out", ["optimizer.zero_grad(); continue", "break", "raise"])
def test_who_gives_the_window_or_the_training_up_skips_nothing(skip: str, way_out: str) -> None:
    assert codes(COUNTED.format(skip=skip.format(way_out=way_out))) == []


BY_HAND = "for p in model.parameters():\n                {}\n            continue"


@by_skip
@pytest.mark.parametrize(
    ("hand", "found"),
    [("p.grad = None", []), ("p.grad.zero_()", []), ("forget(p)", []), ("print(p.grad)", ["GA303"])],
)
def test_who_clears_the_gradients_by_hand_gives_the_window_up_too(skip: str, hand: str, found: list[str]) -> None:
    helper = "def forget(p):\n    p.grad = None\n\n"
    assert codes(helper + COUNTED.format(skip=skip.format(way_out=BY_HAND.format(hand)))) == found


def test_a_branch_that_clears_by_hand_what_is_not_finite() -> None:
    skip = """\
        loss = criterion(model(x), y) / 3
        if torch.isfinite(loss):
            loss.backward()
        else:
            for p in model.parameters():
                {hand}
"""
    assert codes(COUNTED.format(skip=skip.format(hand="p.grad = None"))) == []
    assert codes(COUNTED.format(skip=skip.format(hand="print(p)"))) == ["GA303"]


@pytest.mark.parametrize("then", ["print(loss)", "loss = torch.nan_to_num(loss)", "loss = 0.0 * loss"])
def test_a_micro_batch_whose_loss_is_only_mended_is_not_skipped(then: str) -> None:
    skip = f"""
        loss = criterion(model(x), y) / 3
        if not torch.isfinite(loss):
            {then}
        loss.backward()
"""
    assert codes(COUNTED.format(skip=skip)) == []


def test_an_error_around_the_step_too() -> None:
    source = """\
def train(model, loader, optimizer, criterion):
    assert len(loader) % 3 == 0
    {before}
    for i, (x, y) in enumerate(loader):
        try:
            (criterion(model(x), y) / 3).backward()
            {count}
            if {boundary}:
                optimizer.step()
                optimizer.zero_grad()
        except RuntimeError as error:
            print(error)
"""
    assert codes(source.format(before="pass", count="pass", boundary="(i + 1) % 3 == 0")) == ["GA303"]
    assert codes(source.format(before="ran = 0", count="ran += 1", boundary="ran % 3 == 0")) == []
    assert codes(source.format(before="pass", count="pass", boundary="(i + 1) % 3 == 0").replace(" / 3", "")) == [
        "GA101"
    ]


def test_a_backward_that_only_finite_losses_have() -> None:
    skip = """\
        loss = criterion(model(x), y) / 3
        if torch.isfinite(loss):
            loss.backward()
"""
    assert codes(COUNTED.format(skip=skip)) == ["GA303"]
    ran = "".join(f"    {line}\n" for line in skip.splitlines()) + "                ran += 1\n"
    assert codes(RAN.replace("            ran += 1\n", "").format(skip=ran)) == []


def test_a_helper_that_returns_early() -> None:
    helper = """\
def one(model, x, y):
    loss = nn.functional.mse_loss(model(x), y) / 3
    if not torch.isfinite(loss):
        return None
    loss.backward()
    return loss.item()

"""
    assert codes(helper + COUNTED.format(skip="        one(model, x, y)")) == ["GA303"]


@pytest.mark.parametrize(
    "guard", ["if x.size(0) < 8: continue", "if y is None: continue", "if loss > 10: print(loss)", "if i > 99: break"]
)
def test_what_asks_for_something_else_skips_nothing(guard: str) -> None:
    skip = f"        loss = criterion(model(x), y) / 3\n        {guard}\n        loss.backward()\n"
    assert codes(COUNTED.format(skip=skip)) == []


BY_DATA = {
    "a mask that is empty": "if not y.any(): {way_out}",
    "nothing to learn from": "if y.sum() == 0: {way_out}",
    "a mark": "if x['broken']: {way_out}",
}


@pytest.mark.parametrize("guard", BY_DATA.values(), ids=BY_DATA.keys())
def test_a_micro_batch_that_its_data_leave_out(guard: str) -> None:
    skip = f"        {guard.format(way_out='continue')}\n        (criterion(model(x), y) / 3).backward()\n"
    assert codes(COUNTED.format(skip=skip)) == ["GA303"]
    ran = "".join(f"    {line}\n" for line in skip.splitlines())
    assert codes(RAN.format(skip=ran)) == []


def test_a_micro_batch_that_only_good_data_take_in() -> None:
    skip = (
        "        if y.any():\n            (criterion(model(x), y) / 3).backward()\n        else:\n            bad = i\n"
    )
    assert codes(COUNTED.format(skip=skip)) == ["GA303"]


REJECTED = """\
import torch
from torch import nn
K = 4
data = torch.utils.data.TensorDataset(torch.randn({rows}, 5), torch.randn({rows}, 2))
loader = torch.utils.data.DataLoader(data, batch_size=5)
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    {before}
    loss = nn.functional.mse_loss(model(x), y)
    (loss / K).backward()
    if (i + 1) % K == 0 or i + 1 == len(loader):
        {after}
        optimizer.step()
        optimizer.zero_grad()
"""
FORGOTTEN = "if {}:\n            optimizer.zero_grad()\n            continue"


@pytest.mark.parametrize("spike", ["loss.item() > 1e9", "loss > 7.5", "x.abs().max() > 40"])
@pytest.mark.parametrize(("rows", "found"), [(40, []), (50, ["GA103"])])
def test_a_window_that_is_rejected_ran_as_many_as_the_source_shows(spike: str, rows: int, found: list[str]) -> None:
    # 8 micro-batches are two whole windows, 10 leave two: to reject one after its backward changes neither.
    source = REJECTED.format(rows=rows, before="pass", after=FORGOTTEN.format(spike))
    assert codes_in(source) == found


def test_how_many_are_left_of_those_that_their_data_leave_out_is_not_known() -> None:
    source = REJECTED.format(rows=50, before="if x.abs().max() > 40:\n        continue", after="pass")
    assert not [f for f in lint_source(source, "train.py") if "last window holds 2" in f.message]


@by_skip
def test_a_micro_batch_that_is_skipped_in_windows_of_two(skip: str) -> None:
    assert codes(COUNTED.format(skip=skip.format(way_out="continue")).replace("3", "2")) == ["GA303"]


@pytest.mark.parametrize(
    "guard", ["loss > 0", "loss.item() != 0", "loss.item() < best", "step_time > 3", "0 < loss"], ids=lambda text: text
)
def test_a_loss_that_is_nothing_may_be_left_out(guard: str) -> None:
    then = "best = loss.item()" if "best" in guard else "(loss / 3).backward()"
    always = "        (loss / 3).backward()\n" if "best" in guard else ""
    skip = f"        loss = criterion(model(x), y)\n        if {guard}:\n            {then}\n{always}"
    assert codes(COUNTED.format(skip=skip)) == []


LEFT_OVER = """\
import torch
from torch import nn
K = 4
batches = [(torch.randn(5, 3), torch.randn(5, 1)) for _ in range(10)]
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ran = 0
for i, (x, y) in enumerate(batches):
    loss = nn.functional.mse_loss(model(x), y)
    {guard}
    (loss / K).backward()
    ran += 1
    if {full}:
        optimizer.step()
        optimizer.zero_grad()
        ran = 0
"""
GIVES_UP = "if not loss.isfinite():\n        optimizer.zero_grad()\n        ran = 0\n        continue"


@pytest.mark.parametrize(
    ("guard", "full", "found"),
    [
        ("pass", "ran == K", ["GA301"]),
        ("if not loss.isfinite():\n        continue", "ran == K", []),
        (GIVES_UP, "ran == K", []),
        ("if not loss.isfinite():\n        continue", "(i + 1) % K == 0", ["GA301", "GA303"]),
        ("if not loss.isfinite():\n        print(i)", "ran == K", ["GA301"]),
    ],
)
def test_how_many_are_left_over_depends_on_what_is_skipped(guard: str, full: str, found: list[str]) -> None:
    assert sorted(codes_in(LEFT_OVER.format(guard=guard, full=full))) == found


def test_what_data_of_an_unknown_number_leave_over_is_dropped_whatever_is_skipped() -> None:
    source = LEFT_OVER.format(guard="if not loss.isfinite():\n        continue", full="ran == K")
    assert codes_in(source.replace("range(10)", "range(number)")) == ["GA301"]


ASKS_ITS_GRADIENTS = """\
import torch
import torch.nn.functional as F

def {name}(network):
    for _, weight in network.named_parameters():
        if weight.grad is not None:
            if {asks}:
                {leaves}
    return True

def fit(network, loader, optimizer, epochs, accumulation_steps):
    for epoch in range(epochs):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            loss = F.cross_entropy(network(x), y) / {divisor}
            loss.backward()
            if (i + 1) % accumulation_steps == 0:
                if {name}(network):
                    optimizer.step()
                optimizer.zero_grad()
"""


@pytest.mark.parametrize(("divisor", "found"), [("1", ["GA101", "GA301"]), ("accumulation_steps", ["GA301"])])
@pytest.mark.parametrize("asks", ["torch.any(torch.isnan(weight.grad))", "not torch.isfinite(weight.grad).all()"])
@pytest.mark.parametrize("leaves", ["return False", "raise FloatingPointError"])
def test_who_asks_each_gradient_whether_it_is_finite_steps_where_all_are(
    divisor: str, found: list[str], asks: str, leaves: str
) -> None:
    source = ASKS_ITS_GRADIENTS.format(name="are_sound", asks=asks, leaves=leaves, divisor=divisor)
    assert sorted(codes_in(source)) == found
