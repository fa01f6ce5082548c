"""verify on losses over lists of boxes whose targets were made of those of several images, against plain arithmetic."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

pytestmark = pytest.mark.usefixtures("in_float64")

K = 3
COUNTS = [[3, 4, 1], [2, 2, 5], [4, 1, 3], [1, 2, 3], [3, 3, 4], [1, 4, 2]]
Boxes = Sequence[torch.Tensor]
Make = Callable[[Boxes], list[torch.Tensor]]
"""The targets of a batch's boxes."""


def centred(own: Boxes) -> list[torch.Tensor]:
    middle = torch.cat([*own]).mean(0)
    return [boxes - middle for boxes in own]


def larger_than_most(own: Boxes) -> list[torch.Tensor]:
    middle = torch.cat([*own]).prod(1).median()
    return [boxes * (boxes.prod(1, keepdim=True) > middle) for boxes in own]


def without_the_most_common(own: Boxes) -> list[torch.Tensor]:
    common = torch.cat([*own]).mul(3).round().mode(0).values
    return [boxes * (boxes.mul(3).round() != common) for boxes in own]


def middle_alone(own: Boxes) -> list[torch.Tensor]:
    middle = torch.cat([*own]).mean(0)
    return [middle for _ in own]


def as_they_are(own: Boxes) -> list[torch.Tensor]:
    return [*own]


def watched(make: Make, shared: bool = False) -> tuple[VerifyResult, float]:
    """The result, and the largest relative error of a step; ``shared`` centres by what all micro-batches use."""
    torch.manual_seed(0)
    data = [([torch.rand(n, 4) for n in counts], torch.randn(len(counts), 6)) for counts in COUNTS]
    everything = torch.cat([boxes for each, _ in data for boxes in each])
    mean = everything.mean(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    def errors(out: torch.Tensor, targets: Boxes) -> torch.Tensor:
        each = [(one.expand_as(wanted) - wanted).square().sum() for one, wanted in zip(out, targets, strict=True)]
        return torch.stack(each).sum()

    worst = 0.0
    with observe() as observation:
        for start in range(0, len(data), K):
            window = data[start : start + K]
            all_boxes = [boxes for each, _ in window for boxes in each]
            total = sum(map(len, all_boxes))
            for each, x in window:
                made = [boxes - mean for boxes in each] if shared else make(each)
                (errors(model(x), made) / total).backward()
            got = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            with torch.no_grad():
                wanted = [b - mean for b in all_boxes] if shared else make(all_boxes)
            true = _gradient(copy.deepcopy(model), torch.cat([x for _, x in window]), wanted, total)
            worst = max(worst, float((got - true).norm() / true.norm()))
            optimizer.step()
            optimizer.zero_grad()
    return observation.result(), worst


def _gradient(model: nn.Module, x: torch.Tensor, targets: Boxes, total: int) -> torch.Tensor:
    """By hand: the derivative of the squared errors at the outputs, and from there through the model."""
    out = model(x)
    slopes = torch.stack(
        [2 * (one.expand_as(w) - w).reshape(-1, 4).sum(0) for one, w in zip(out.detach(), targets, strict=True)]
    )
    return torch.cat([g.flatten() for g in torch.autograd.grad(out, [*model.parameters()], slopes / total)])


@pytest.mark.parametrize("make", [centred, larger_than_most, without_the_most_common, middle_alone])
def test_targets_that_were_made_of_several_images_are_not_passed(make: Make) -> None:
    result, error = watched(make)
    assert error > 1e-3
    assert result.verdict is Verdict.INCONCLUSIVE, result.reason


@pytest.mark.parametrize("shared", [False, True])
def test_targets_of_their_own_image_or_of_all_data_are(shared: bool) -> None:
    result, error = watched(as_they_are, shared)
    assert error < 1e-12
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


BOXES_OF_ROWS = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
# As many rows as a box has coordinates, and two to four boxes for each.
images = [[torch.rand(2 + (i + j) % 3, 4) for j in range(4)] for i in range(6)]
xs = [torch.randn(4, 6) for _ in images]
for first in range(0, 6, 3):
    window = images[first : first + 3]
    total = sum(len(boxes) for own in window for boxes in own)
    for x, own in zip(xs[first : first + 3], window):
        loss = 0.0
        for out, boxes in zip({out}, own):
            loss = loss + F.smooth_l1_loss(out.expand(len(boxes), 4), boxes, reduction="sum")
        ({scaled}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
COUPLED = {Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, Verdict.INCONCLUSIVE}


@pytest.mark.parametrize(
    ("out", "scaled", "verdicts"),
    [
        ("model(x)", "loss / total", {Verdict.EQUIVALENT}),
        ("model(x)", "loss / sum(map(len, own))", {Verdict.DEVIATES, Verdict.INCONCLUSIVE}),
        ("model(x).softmax(0)", "loss / total", COUPLED),
        ("model(x) - model(x).mean(0)", "loss / total", COUPLED),
        ("model(x) + model(x[:1])", "loss / total", COUPLED),
    ],
)
def test_boxes_of_each_row_are_not_taken_apart_by_their_coordinates(
    tmp_path: Path, out: str, scaled: str, verdicts: set[Verdict]
) -> None:
    result = watch_source(BOXES_OF_ROWS.format(out=out, scaled=scaled), tmp_path)
    assert result.verdict in verdicts, result.reason


MATCHED_BOXES = """
import itertools
import torch
from torch import nn

torch.manual_seed(2)
torch.set_default_dtype(torch.float64)


class Finder(nn.Module):
    def __init__(self):
        super().__init__()
        self.see = nn.Sequential(nn.Linear(10, 8), nn.Tanh())
        self.kinds, self.boxes = nn.Linear(8, 3 * 4), nn.Linear(8, 3 * 4)

    def forward(self, images):
        seen = self.see(images)
        {within}
        return self.kinds(seen).unflatten(1, (3, 4)), self.boxes(seen).unflatten(1, (3, 4))


class Matched(nn.Module):
    def forward(self, found, wanted):
        kinds, boxes = found
        every = torch.cat([one["boxes"] for one in wanted])
        labels, far = torch.full(kinds.shape[:2], 3), 0.0
        for row, one in enumerate(wanted):
            orders = itertools.permutations(range(3), len(one["kinds"]))
            best = min(orders, key=lambda own: float((boxes[row, list(own)].detach() - one["boxes"]).abs().sum()))
            labels[row, list(best)] = one["kinds"]
            far = far + {distance}
        labels = nn.functional.cross_entropy(kinds.flatten(0, 1), labels.flatten(), reduction="sum")
        return {losses}


def image():
    number = int(torch.randint(1, 4, ()))
    return torch.randn(10), {{"kinds": torch.randint(0, 3, (number,)), "boxes": torch.rand(number, 4)}}


def batch_of(images):
    wanted = [one for _, one in images]
    {prepared}
    return torch.stack([pixels for pixels, _ in images]), wanted


images = [image() for _ in range(18)]
model, criterion = Finder(), Matched()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for first in range(0, 18, 9):
    window = images[first : first + 9]
    boxes, slots = sum(len(one["kinds"]) for _, one in window), 3 * len(window)

    def loss_of(images):
        pixels, wanted = batch_of(images)
        of_kinds, of_boxes = criterion(model(pixels), wanted)
        return {scaled}

    expected = torch.autograd.grad(loss_of(window), [*model.parameters()]) if {checked} else None
    for begin in range(0, 9, 3):
        loss_of(window[begin : begin + 3]).backward()
    if expected is not None:
        torch.testing.assert_close([p.grad for p in model.parameters()], list(expected))
    optimizer.step()
    optimizer.zero_grad()
"""
TO_ITS_OWN = '(boxes[row, list(best)] - one["boxes"]).abs().sum()'
TO_THE_NEAREST_OF_ALL = "(boxes[row][:, None] - every).abs().sum(2).min(1).values.sum()"
CENTRE = "middle = torch.cat([one['boxes'] for one in wanted]).mean(0)"
CENTRED = f"{CENTRE}; wanted = [dict(one, boxes=one['boxes'] - middle) for one in wanted]"


def of_matched_boxes(folder: Path, **parts: object) -> VerifyResult:
    given = {"within": "", "distance": TO_ITS_OWN, "losses": "labels, far", "prepared": "", "checked": False}
    given["scaled"] = "of_kinds / slots + 2 * of_boxes / boxes"
    return watch_source(MATCHED_BOXES.format(**{**given, **parts}), folder)


def test_what_the_items_of_a_list_hold_is_that_of_each_image(tmp_path: Path) -> None:
    """The boxes of one image compete for its places, and those of two have nothing to do with each other."""
    right = of_matched_boxes(tmp_path, checked=True)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason


@pytest.mark.parametrize(
    "parts",
    [
        {"within": "seen = seen - seen.mean(0)"},
        {"within": "seen = seen + seen[:1]"},
        {"distance": TO_THE_NEAREST_OF_ALL},
        {"prepared": CENTRED},
    ],
    ids=["normalized", "added", "nearest", "centred"],
)
def test_images_that_the_items_of_a_list_do_not_keep_apart(parts: dict[str, object], tmp_path: Path) -> None:
    found = of_matched_boxes(tmp_path, **parts)
    assert found.verdict in COUPLED, found.reason


def test_boxes_that_are_divided_by_the_number_of_their_batch(tmp_path: Path) -> None:
    parts = {"losses": "labels, far / len(every)", "scaled": "of_kinds / slots + 2 * of_boxes / 3"}
    assert of_matched_boxes(tmp_path, **parts).verdict is not Verdict.EQUIVALENT
