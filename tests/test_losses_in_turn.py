"""Several losses of one step, computed first and then given to backward at one line, each on data of its own.

Weights by hand: where the losses of m turns are each divided by d, a turn has m / d of its weight in the large batch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult

EQUATION = """
import torch
from torch import nn
torch.manual_seed(3)
TURNS = {turns}
SIZES = {sizes}
model = nn.Sequential(nn.Linear(2, 7), nn.Tanh(), nn.Linear(7, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
def slope(out, of):
    return torch.autograd.grad(out.sum(), of, create_graph=True)[0]
def losses(inside, start, edge):
    x = torch.rand(inside, 2).requires_grad_(True)
    residual = (slope(model(x), x).sum(1) - 0.3).square().mean()
    x0 = torch.rand(start, 2)
    begins = (model(x0) - x0[:, :1].sin()).square().mean()
    ends = model(torch.rand(edge, 2)).square().mean()
    return {{"equation": (residual, 1.0), "start": (begins, 6.5), "edge": (ends, 2.3)}}
for step in range(3):
    optimizer.zero_grad()
    for turn in range(TURNS):
        for value, weight in losses(*SIZES[turn]).values():
            (weight * value{scale}).backward()
    optimizer.step()
"""
EQUAL = "[(25, 14, 9)] * TURNS"


def watched(folder: Path, *, turns: int, scale: str = "", sizes: str = EQUAL) -> VerifyResult:
    return watch_source(EQUATION.format(turns=turns, scale=scale, sizes=sizes), folder)


def test_losses_of_one_step_are_terms_of_its_objective(tmp_path: Path) -> None:
    result = watched(tmp_path, turns=1)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert {window.micro_batches for window in result.windows} == {1}


@pytest.mark.parametrize(
    ("scale", "sizes", "codes"),
    [
        (" / TURNS", EQUAL, []),
        ("", EQUAL, ["GA101"]),
        (" / TURNS / TURNS", EQUAL, ["GA102"]),
        (" / TURNS", "[(25, 14, 9), (20, 14, 9), (25, 11, 5)]", ["GA104"]),
    ],
)
def test_their_turns_are_micro_batches(scale: str, sizes: str, codes: list[str], tmp_path: Path) -> None:
    result = watched(tmp_path, turns=3, scale=scale, sizes=sizes)
    assert [d.mistake.code for d in result.diagnosis] == codes, result.reason
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT), result.reason
    assert {window.micro_batches for window in result.windows} == {3}


PARTS = """
import torch
from torch import nn
torch.manual_seed(3)
PARTS = 3
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x, y = torch.randn(12, 4), torch.randn(12, 2)
    losses = [nn.functional.mse_loss(model(a), b) for a, b in zip(x.chunk(PARTS), y.chunk(PARTS))]
    optimizer.zero_grad()
    for loss in losses:
        (loss{scale}).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("scale", "codes"), [("", ["GA101"]), (" / PARTS", [])])
def test_losses_that_are_computed_alike_are_micro_batches(scale: str, codes: list[str], tmp_path: Path) -> None:
    result = watch_source(PARTS.format(scale=scale), tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes, result.reason
    assert {window.micro_batches for window in result.windows} == {3}


BOXES = """
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(52)
K = {steps}
model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
boxes = [[torch.rand(int(torch.randint(1, 5, ())), 4) for _ in range(5)] for _ in range(12)]
for first in range(0, 12, K):
    window = boxes[first : first + K]
    total = sum(len(each) for own in window for each in own)
    for own in window:
        loss = 0.0
        for out, each in zip(model(torch.randn(5, 12)), own):
            loss = loss + F.smooth_l1_loss(out.expand(len(each), 4), each, reduction="sum")
        (0.35 * loss / {divisor}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("steps", [1, 3])
def test_the_sums_of_all_images_are_one_sum(steps: int, tmp_path: Path) -> None:
    # Each box has four numbers, so all of a window's boxes are a fourth of what is summed, in every window.
    result = watch_source(BOXES.format(steps=steps, divisor="total"), tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


@pytest.mark.parametrize(
    ("divisor", "verdict"),
    [
        ("(total * K)", Verdict.DEVIATES),
        ("sum(map(len, own))", Verdict.INCONCLUSIVE),
        ("(total - len(window[0][0]))", Verdict.INCONCLUSIVE),
    ],
)
def test_what_is_no_share_of_them_is_not_passed(divisor: str, verdict: Verdict, tmp_path: Path) -> None:
    result = watch_source(BOXES.format(steps=3, divisor=divisor), tmp_path)
    assert result.verdict is verdict, result.reason


TWO_PLACES = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(5, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first, second = [[(torch.randn(4, 5), torch.randint(0, 3, (4,))) for _ in range(6)] for _ in range(2)]
cross_entropy = nn.CrossEntropyLoss()
for (x, y), (u, v) in zip(first, second):
    ({first} * cross_entropy(model(x), y)).backward()
    ({second} * cross_entropy(model(u), v)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        # The mean of two micro-batches, or a sum of two terms with coefficients of their own: right as either.
        ("0.5", "0.5", Verdict.EQUIVALENT),
        ("0.35", "0.35", Verdict.EQUIVALENT),
        # Right as terms, wrong as micro-batches: that 0.5 is 1/2 does not say which.
        ("0.5", "1", Verdict.INCONCLUSIVE),
        ("0.5", "0.25", Verdict.INCONCLUSIVE),
    ],
)
def test_a_factor_that_equals_a_share_does_not_say_what_two_places_are(
    first: str, second: str, verdict: Verdict, tmp_path: Path
) -> None:
    result = watch_source(TWO_PLACES.format(first=first, second=second), tmp_path)
    assert (result.verdict, result.diagnosis) == (verdict, ()), result.reason


DISCRIMINATOR = """
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(32)
generator = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 2))
critic = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-3)
of_critic = torch.optim.Adam(critic.parameters(), lr=2e-3)
def bce(logits, value):
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, value))
for turn in range(4):
    real, fake = torch.randn({rows}, 2), generator(torch.randn({rows}, 2))
    of_critic.zero_grad()
    (0.5 * bce(critic(real), 0.9)).backward()
    (0.5 * bce(critic(fake.detach()), 0.0)).backward()
    {penalty}
    of_critic.step()
    of_generator.zero_grad()
    bce(critic(fake), 1.0).backward()
    of_generator.step()
"""
PENALTY = """x = real.clone().requires_grad_(True)
    slope = torch.autograd.grad(critic(x).sum(), x, create_graph=True)[0]
    (10 * (slope.norm(dim=1) - 1).square().mean()).backward()"""


@pytest.mark.parametrize("rows", [2, 5])
@pytest.mark.parametrize("penalty", ["", PENALTY])
def test_halves_of_a_discriminators_loss_are_its_objective(rows: int, penalty: str, tmp_path: Path) -> None:
    result = watch_source(DISCRIMINATOR.format(rows=rows, penalty=penalty), tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


DETECTOR = """
import torch
from torch import nn
F = nn.functional
torch.manual_seed(39)
torch.set_default_dtype(torch.float64)
IMAGES, TURNS = 3, {turns}
COUNTS = [3, 0, 4, 1, 2, 3, 4, 1, 0, 2, 2, 4, 3, 1, 4, 4, 0, 3]
body, place, name = nn.Linear(9, 8), nn.Linear(8, 4 * 4), nn.Linear(8, 4 * 6)
weights = [*body.parameters(), *place.parameters(), *name.parameters()]
optimizer = torch.optim.SGD(weights, lr=0.03)
images = [(torch.randn(9), torch.rand(n, 4), torch.randint(0, 6, (n,))) for n in COUNTS]
def losses(part, count, count_of_names):
    hidden = torch.tanh(body(torch.stack([image for image, _, _ in part])))
    found, named = place(hidden).view(-1, 4, 4), name(hidden).view(-1, 4, 6)
    boxes, names = found.sum() * 0.0, 0.0
    for out, logits, (_, wanted, labels) in zip(found, named, part):
        if len(wanted):
            boxes = boxes + (out[: len(wanted)] - wanted).abs().sum()
            names = names + F.cross_entropy(logits[: len(wanted)], labels, reduction="sum")
    return {loss}
last = 7
for start in range(0, 18, IMAGES * TURNS):
    window = images[start:start + IMAGES * TURNS]
    total = max(1, sum(len(boxes) for _, boxes, _ in window))
    if {checked}:
        expected = torch.autograd.grad(losses(window, total, total), weights)
    for turn in range(0, len(window), IMAGES):
        part = window[turn:turn + IMAGES]
        own = max(1, sum(len(boxes) for _, boxes, _ in part))
        losses(part, {count}, {count_of_names}).backward()
    if {checked}:
        torch.testing.assert_close([p.grad for p in weights], list(expected))
    last = total
    optimizer.step()
    optimizer.zero_grad()
"""
TOGETHER, APART = "(boxes + 0.7 * names) / count", "boxes / count + 0.7 * names / count_of_names"


def detected(folder: Path, loss: str, count: str, of_names: str = "total", *, turns: int = 3) -> VerifyResult:
    checked = (count, of_names) == ("total", "total")
    given = {"loss": loss, "count": count, "count_of_names": of_names, "turns": turns, "checked": checked}
    return watch_source(DETECTOR.format(**given), folder)


@pytest.mark.parametrize("loss", [TOGETHER, APART])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_one_number_of_boxes_divides_all_terms_of_a_detector(loss: str, turns: int, tmp_path: Path) -> None:
    """A box has four numbers and one name: what counts one of these kinds in every window counts the window's boxes."""
    result = detected(tmp_path, loss, "total", turns=turns)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


@pytest.mark.parametrize(
    ("loss", "count", "of_names"),
    [
        (TOGETHER, "own", ""),
        (TOGETHER, "last", ""),
        (TOGETHER, "total * TURNS", ""),
        (APART, "own", "own"),
        (APART, "last", "last"),
        (APART, "total * TURNS", "total * TURNS"),
        (APART, "total", "own"),
        (APART, "total", "last"),
    ],
)
def test_another_number_of_boxes_is_not_passed(loss: str, count: str, of_names: str, tmp_path: Path) -> None:
    assert detected(tmp_path, loss, count, of_names or count).verdict is not Verdict.EQUIVALENT


TOTALS = """
import torch
from torch import nn
torch.manual_seed(0)
SIZES = [2, 5, 3, 4, 1, 6, 3, 3, 7, 2, 4, 5]
data = [(torch.randn(n, 5), torch.randint(0, 4, (n,))) for n in SIZES]
model = nn.Linear(5, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 10
for start in range(0, 12, 3):
    window = data[start:start + 3]
    {before}
    for x, y in window:
        (nn.functional.cross_entropy(model(x), y, reduction="sum") / {count}).backward()
    optimizer.step()
    optimizer.zero_grad()
    total = sum(len(y) for _, y in window)
"""


@pytest.mark.parametrize(
    ("before", "count", "is_right"),
    [
        ("total = sum(len(y) for _, y in window)", "total", True),
        # The list of that name was another when its items were counted.
        ("", "total", False),
        ("counts = {'all': 3 * sum(len(y) for _, y in window)}", "counts['all']", False),
    ],
)
def test_a_total_is_that_of_the_window_only_if_its_numbers_are(
    before: str, count: str, is_right: bool, tmp_path: Path
) -> None:
    result = watch_source(TOTALS.format(before=before, count=count), tmp_path)
    assert (result.verdict is Verdict.EQUIVALENT) is is_right, result.reason


ANCHORS = """
import torch
from torch import nn
F = nn.functional
torch.manual_seed(8)
K, ROWS = {turns}, 3
trunk, scores, corners = nn.Linear(6, 9), nn.Linear(9, 20), nn.Linear(9, 80)
weights = [*trunk.parameters(), *scores.parameters(), *corners.parameters()]
optimizer = torch.optim.SGD(weights, lr=0.05)
def losses(x, found, places):
    seen = trunk(x).relu()
    each = F.binary_cross_entropy_with_logits(scores(seen), found.float(), reduction="none")
    boxes = corners(seen).reshape(len(x), 20, 4)
    return {scores}, F.smooth_l1_loss(boxes[found], places[found], reduction="sum")
for window in range(5):
    optimizer.zero_grad()
    objects = 0
    for _ in range(K):
        found = torch.rand(ROWS, 20) < 0.1 + 0.2 * torch.rand(ROWS, 1)
        score, box = losses(torch.randn(ROWS, 6), found, torch.randn(ROWS, 20, 4))
        (score + box).backward()
        objects += int(found.sum())
    for weight in weights:
        weight.grad.div_({divisor})
    optimizer.step()
"""


@pytest.mark.parametrize("turns", [4, 3])
@pytest.mark.parametrize(
    ("scores", "divisor", "verdict"),
    [
        # A box has four numbers, whatever K is: their sum over its objects is four times their mean.
        ("each.sum()", "max(objects, 1)", Verdict.EQUIVALENT),
        ("each.sum()", "max(objects, 1) * K", Verdict.INCONCLUSIVE),
        ("each.mean()", "max(objects, 1)", Verdict.INCONCLUSIVE),
    ],
)
def test_objects_that_gradients_are_divided_by_divide_all_terms(
    turns: int, scores: str, divisor: str, verdict: Verdict, tmp_path: Path
) -> None:
    result = watch_source(ANCHORS.format(turns=turns, scores=scores, divisor=divisor), tmp_path)
    assert result.verdict is verdict, (result.reason, result.diagnosis)
