"""What Python's own assignments, functions and comprehensions make of the numbers and batches of a loop."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in, filled

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

"""
LOOP = """\
def train(model, loader, optimizer, criterion, feed, args):
    {before}
    assert len(loader) % {K} == 0
    for i, (x, y) in enumerate(loader):
        {every}
        ({loss}).backward()
        if (i + 1) % {K} == 0:
            {inside}
            optimizer.step()
            optimizer.zero_grad()
"""
MEAN = "criterion(model(x), y)"


def codes(*, loss: str = MEAN, K: str = "3", **places: str) -> list[str]:
    return codes_in(HEAD + filled(LOOP, loss=loss, K=K, **places))


# What a name is bound to


@pytest.mark.parametrize(
    "before",
    [
        "k, *others = [3, 4, 6]",
        "*others, k = [6, 4, 3]",
        "(first, *others), k = [4, 6], 3",
        "*_, k, last = 12, 3, 4",
        "most, *others, k = [12, 4, 6, 3]",
        "most, k, *others, least = [12, 3, 4, 6, 1]",
        "k, *others = [3]",
        "ks = [4, 6]; ks[-2] = 3; k = ks[0]",
        "ks = [4, 6]; ks[1] = 3; k = ks[-1]",
    ],
)
def test_numbers_that_are_taken_out_of_a_list(before: str) -> None:
    assert codes(before=before, K="k", loss=f"{MEAN} / k") == []
    assert codes(before=before, K="k", loss=f"{MEAN} / 3") == []
    assert codes(before=before, K="k", loss=f"{MEAN} / 4") != []
    assert codes(before=before, K="k") == ["GA101"]


@pytest.mark.parametrize("before", ["k, *others = args.ks", "*others, k = args.ks", "*others, k = feed.settings()"])
def test_numbers_that_are_taken_out_of_what_is_unknown(before: str) -> None:
    assert "GA101" not in codes(before=before, K="k", loss=f"{MEAN} / k")
    assert "GA101" in codes(before=before, K="k")


def test_numbers_that_a_class_takes_out_of_several() -> None:
    settings = "class Settings:\n    k, *others = 3, 4, 6\n    most, least = 6, 4\n\n"
    source = HEAD + settings + filled(LOOP, loss=f"{MEAN} / Settings.{{of}}", K="Settings.{of}")
    for of in ("k", "most", "least"):
        assert codes_in(source.replace("{of}", of)) == []
    assert codes_in(source.replace("/ Settings.{of}", "/ Settings.least").replace("{of}", "most")) != []


def test_gradients_that_are_divided_by_an_operand_with_its_name() -> None:
    inside = "for p in model.parameters(): p.grad.div_(other={})"
    assert codes(inside=inside.format(3)) == []
    assert codes(inside=inside.format(1)) == ["GA101"]


@pytest.mark.parametrize("new", ["torch.zeros_like(p)", "feed.gradient(p)"])
def test_gradients_that_are_replaced_are_unknown_from_there_on(new: str) -> None:
    assert codes(inside=f"for p in model.parameters(): p.grad = {new}") == []


# Functions


@pytest.mark.parametrize(
    "loss",
    [
        f"torch.mul({MEAN}, 1 / 3)",
        f"torch.mul({MEAN}, other=1 / 3)",
        f"torch.div(input={MEAN}, other=3)",
        f"{MEAN}.div(other=3)",
        f"torch.mean(torch.mul({MEAN}, 1 / 3))",
    ],
)
def test_a_division_that_is_a_call(loss: str) -> None:
    assert codes(loss=loss) == []
    assert codes(loss=loss.replace("1 / 3", "1").replace("3)", "1)")) == ["GA101"]


@pytest.mark.parametrize(
    "every",
    [
        "number = torch.sum(args.weights)",
        "number = torch.mean(3.0)",
        "kept = filter(None, [1, 2])",
        "kept = filter(len)",
        "kept = list(filter(lambda one: one.ready, args.all))",
        "first, second = [1, 2, 3]",
        "kept = [1, 2, 3, 4][: args.most]",
        "kept = [1, 2, 3, 4][args.first : 3]",
    ],
)
def test_what_is_made_of_other_things_is_no_part_of_the_loop(every: str) -> None:
    assert codes(every=every, loss=f"{MEAN} / 3") == []
    assert codes(every=every) == ["GA101"]


SPLIT = """\
data = TensorDataset(torch.randn(40, 7), torch.randn(40, 2))
first, second = random_split(data, {parts})
net = nn.Linear(7, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i, (x, y) in enumerate(DataLoader(first, batch_size=5)):
    (F.mse_loss(net(x), y) / 3).backward()
    if (i + 1) % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("parts", "expected"),
    [("[30, 10]", []), ("[35, 5]", ["GA301"]), ("[0.75, 0.25]", []), ("[0.5, 0.5]", ["GA301"]), ("[0, 40]", ["GA301"])],
)
def test_a_part_of_the_data_has_a_remainder_of_its_own(parts: str, expected: list[str]) -> None:
    # Of a part that is empty as it is written, what it will hold is unknown.
    assert codes_in(HEAD + SPLIT.format(parts=parts)) == expected


OWN = """\
class Own(torch.optim.SGD):
    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)

    def step(self, closure=None):
        self.steps = 1
        super().step(closure)

"""


def test_an_optimizer_of_its_own_steps_as_its_base_does() -> None:
    loop = filled(LOOP, before="optimizer = Own(model.parameters())", loss=f"{MEAN}{{scaling}}", K="3")
    assert codes_in(HEAD + OWN + loop.replace("{scaling}", " / 3")) == []
    assert codes_in(HEAD + OWN + loop.replace("{scaling}", "")) == ["GA101"]


@pytest.mark.parametrize("start", ["0", "0.0", "torch.zeros(())"])
def test_terms_that_are_added_up_before_backward(start: str) -> None:
    every = f"loss = {start}\n        for head in (0, 1):\n            loss += criterion(model(x)[head], y) / {{}}"
    assert codes(every=every.format(3), loss="loss") == []
    assert codes(every=every.format(1), loss="loss") == ["GA101"]


@pytest.mark.parametrize("pattern", ["[x, y]", "{'x': x, 'y': y}", "Batch(x=x, y=y)"])
def test_what_a_match_by_structure_chooses_is_unknown(pattern: str) -> None:
    every = f"match feed.get():\n            case {pattern}:\n                {MEAN}.backward()"
    assert codes(every=every, loss=MEAN) == []


# What is counted of batches


COUNTS = """\
data = TensorDataset(torch.randn({rows}, 7), torch.randint(0, 3, ({rows},)))
loader = DataLoader({data}, batch_size=5)
net = nn.Linear(7, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
counts = [len(y) for x, y in loader]
for i, (x, y) in enumerate(loader):
    (F.cross_entropy(net(x), y, reduction="sum") / {divisor}).backward()
    if (i + 1) % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_the_rows_of_every_batch_counted_in_a_list() -> None:
    def found(divisor: str, rows: int = 30, data: str = "data") -> list[str]:
        return codes_in(HEAD + COUNTS.format(rows=rows, data=data, divisor=divisor))

    assert found("(counts[i] * 3)") == []
    assert found("counts[i]") == ["GA101"]
    assert found("counts[i]", rows=40) == ["GA101", "GA301"]
    # An unknown number of batches.
    assert found("(counts[i] * 3)", data="read()") == ["GA301"]


LOADED = """\
def load_batches(path):
    return read(path)

def train(model, optimizer, criterion, path):
    batches = load_batches(path)
    for i, (x, y) in enumerate(batches):
        (criterion(model(x), y){scaling}).backward()
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize("home", ["here", "elsewhere"])
def test_what_is_loaded_before_the_loop_is_its_data_and_no_micro_batch(home: str) -> None:
    source = HEAD + (LOADED if home == "here" else LOADED[LOADED.index("def train") :])
    assert codes_in(source.format(scaling=" / 3")) == ["GA301"]
    assert codes_in(source.format(scaling="")) == ["GA101", "GA301"]


# What is at a number of something unknown


PICKED = """\
def train(model, optimizer, feed, turns):
    for turn in range(turns):
        pair = feed.get()
        ((model(pair[0]).loss + model(pair[1]).loss) / {divisor}).backward()
        if (turn + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize("divisor", [2, 3, 6])
def test_what_is_picked_of_something_that_changes_may_be_a_micro_batch(divisor: int) -> None:
    """A window of three turns holds three micro-batches of two terms each, or six: which is unknown."""
    assert codes_in(HEAD + PICKED.format(divisor=divisor)) == []


@pytest.mark.parametrize("made", ["feed()", "feed().parts"])
def test_what_every_call_gives_anew_may_be_another_model_and_optimizer(made: str) -> None:
    source = HEAD + filled(LOOP, loss=f"F.mse_loss({made}[0](x), y)", K="3").replace("optimizer.", f"{made}[1].")
    assert codes_in(source) == []
    kept = source.replace("    for i,", f"    made = {made}\n    for i,").replace(f"{made}[", "made[")
    assert codes_in(kept) == ["GA101"]


# Loops that are long


LONG = """\
def train(model, optimizer, criterion, source):
    batches = iter(source)
    for step in range({steps}):
        x, y = next(batches)
        (criterion(model(x), y){scaling}).backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize("steps", [40, 100_000, 10**9])
def test_a_long_loop_is_read_as_a_short_one_is(steps: int) -> None:
    def found(steps: int, scaling: str) -> list[str]:
        return codes_in(HEAD + LONG.format(steps=steps, scaling=scaling))

    assert found(steps, " / 4") == []
    assert found(steps, "") == ["GA101"]
    assert found(steps + 1, " / 4") == ["GA301"]


BUSY = """\
data = TensorDataset(torch.randn(600, 7), torch.randn(600, 2))
net = nn.Linear(7, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
seen = 0
for epoch in range(50):
    for i, (x, y) in enumerate(DataLoader(data, batch_size=5)):
        {work}
        seen += 1
        (F.mse_loss(net(x), y){scaling}).backward()
        if seen % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(("scaling", "expected"), [(" / 4", []), ("", ["GA101"])])
def test_of_more_epochs_than_there_is_time_for_a_few_will_do(scaling: str, expected: list[str]) -> None:
    work = "; ".join(f"a{number} = seen * {number} + epoch - i" for number in range(30))
    assert codes_in(HEAD + BUSY.format(work=work, scaling=scaling)) == expected
