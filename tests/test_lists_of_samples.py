"""Models that are given lists of sentences: a large batch is a longer list, and words of a sentence may be coupled.

Each window's gradient is compared, in float64, with that of one list of all its sentences.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

SENTENCES = """
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
F = nn.functional
torch.manual_seed(8)
torch.set_default_dtype(torch.float64)
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.rnn, self.out = nn.Embedding(9, 4), nn.GRU(4, 5, bidirectional=True), nn.Linear(10, 3)
    def forward(self, sentences):
        found, _ = self.rnn(pack_sequence([self.words(s) for s in sentences], enforce_sorted=False))
        found = self.out(found.data)
        return found{and_more}
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sentences = [torch.randint(0, 9, (int(n),)) for n in torch.randint(3, 9, (36,))]
def loss_of(part):
    tags = pack_sequence([s % 3 for s in part], enforce_sorted=False).data
    return F.cross_entropy(model(part), tags, reduction="{reduction}")
for start in range(0, 36, 12):
    window = sentences[start:start + 12]
    words = sum(map(len, window))
    expected = torch.autograd.grad(loss_of(window) / words, [*model.parameters()])
    for at in range(0, 12, 3):
        part = window[at:at + 3]
        (loss_of(part) / {divisor}).backward()
    if {checked}:
        torch.testing.assert_close([p.grad for p in model.parameters()], list(expected))
    optimizer.step()
    optimizer.zero_grad()
"""


def watched(folder: Path, **parts: object) -> VerifyResult:
    given = {"and_more": "", "reduction": "sum", "divisor": "words", "checked": False, **parts}
    return watch_source(SENTENCES.format(**given), folder)


def test_sentences_of_a_list_are_samples(tmp_path: Path) -> None:
    right = watched(tmp_path, checked=True)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason


@pytest.mark.parametrize(
    ("parts", "codes"),
    [({"divisor": "sum(map(len, part))"}, ["GA101", "GA104"]), ({"reduction": "mean", "divisor": "4"}, ["GA104"])],
    ids=["means of unlike counts, not divided", "means of unlike counts"],
)
def test_what_is_wrong_with_them(parts: dict[str, object], codes: list[str], tmp_path: Path) -> None:
    wrong = watched(tmp_path, **parts)
    assert (wrong.verdict, [d.mistake.code for d in wrong.diagnosis]) == (Verdict.DEVIATES, codes), wrong.reason


def test_sentences_that_are_compared_with_each_other_are_not_passed(tmp_path: Path) -> None:
    result = watched(tmp_path, and_more=" - found.mean(0)")
    assert result.verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION), result.reason


BATCHES = """
import torch
from torch import nn
torch.manual_seed(8)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)
    def forward(self, batches):
        found = [self.out(x) for x in batches]
        return torch.cat([(each - each.mean(0)).tanh() for each in found])
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    batches = [torch.randn(n, 4) for n in {sizes}]
    y = torch.randint(0, 3, (sum(map(len, batches)),))
    (nn.functional.cross_entropy(model(batches), y, reduction="sum") / {rows}).backward()
    if i % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(("sizes", "rows"), [("(5, 8)", 39), ("(5, 8, 6)", 57)])
def test_batches_of_two_domains_in_a_list_are_no_samples(sizes: str, rows: int, tmp_path: Path) -> None:
    """Each is centred by itself, so that those of a larger batch would be centred otherwise."""
    result = watch_source(BATCHES.format(sizes=sizes, rows=rows), tmp_path)
    assert result.verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION), result.reason


@pytest.mark.parametrize(("by_share", "verdict"), [(True, Verdict.EQUIVALENT), (False, Verdict.DEVIATES)])
def test_lists_of_unlike_numbers_of_bags(by_share: bool, verdict: Verdict) -> None:
    """One bag has a target of its own, as each of three has; its rows are no samples."""
    torch.manual_seed(0)
    numbers = [3, 1, 3, 1, 2, 4, 1, 2]

    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Sequential(nn.Linear(5, 7), nn.Tanh()), nn.Linear(7, 2)

        def forward(self, bags: list[torch.Tensor]) -> torch.Tensor:
            return self.outer(torch.stack([self.inner(bag).mean(0) for bag in bags]))

    model = Bags()
    batches = [[torch.randn(2 + (i * n) % 5, 5) for i in range(1, n + 1)] for n in numbers]
    targets = [torch.randn(n, 2) + 1.0 for n in numbers]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe() as watch:
        for i, (bags, target) in enumerate(zip(batches, targets, strict=True)):
            held = sum(numbers[i // 2 * 2 : i // 2 * 2 + 2])
            share = len(bags) / held if by_share else 1 / 2
            (nn.functional.mse_loss(model(bags), target) * share).backward()
            if (i + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
    assert watch.result().verdict is verdict, watch.result().reason


DETECTOR = """
import torch
from torch import nn
F = nn.functional
torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.kind, self.box = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 4), nn.Linear(6, 4)
    def forward(self, images, targets):
        seen = torch.stack([torch.relu(self.body(image[None])).mean((0, 2, 3)) for image in images]){and_more}
        kinds = torch.stack([target["labels"][0] for target in targets])
        boxes = torch.stack([target["boxes"].mean(0) for target in targets])
        return {{"kind": F.cross_entropy(self.kind(seen), kinds), "box": F.l1_loss(self.box(seen), boxes)}}
def sample(boxes):
    height, width = {shape}
    return torch.rand(3, height, width), {{"boxes": torch.rand(boxes, 4), "labels": torch.randint(0, 4, (boxes,))}}
data = [sample(boxes) for boxes in {boxes}]
model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
def loss_of(part):
    images, targets = zip(*part)
    return sum(model([2 * image - 1 for image in images], [dict(target) for target in targets]).values())
for start in range(0, 24, 8):
    window = data[start:start + 8]
    expected = torch.autograd.grad(loss_of(window), [*model.parameters()])
    for at in range(0, 8, 2):
        (loss_of(window[at:at + 2]) / {divisor}).backward()
    if {checked}:
        torch.testing.assert_close([p.grad for p in model.parameters()], list(expected))
    optimizer.step()
    optimizer.zero_grad()
"""
UNLIKE = "(torch.randint(6, 12, (2,)).tolist())"
BOXES = "[3, 1, 3, 2, 1, 4, 3, 3, 2, 3, 1, 3, 4, 2, 3, 1, 2, 2, 3, 4, 1, 3, 2, 1]"


def detected(folder: Path, **parts: object) -> VerifyResult:
    given = {"and_more": "", "shape": UNLIKE, "boxes": BOXES, "divisor": "4", "checked": False, **parts}
    return watch_source(DETECTOR.format(**given), folder)


@pytest.mark.parametrize("shape", [UNLIKE, "(8, 9)"])
def test_images_with_their_boxes_are_samples(shape: str, tmp_path: Path) -> None:
    """As many boxes as an image has channels are no rows of one batch."""
    right = detected(tmp_path, shape=shape, checked=True)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason


def test_images_whose_losses_are_not_divided(tmp_path: Path) -> None:
    wrong = detected(tmp_path, divisor="1")
    assert (wrong.verdict, [d.mistake.code for d in wrong.diagnosis]) == (Verdict.DEVIATES, ["GA101"]), wrong.reason


@pytest.mark.parametrize("shape", [UNLIKE, "(8, 9)"])
@pytest.mark.parametrize("boxes", [BOXES, "[3] * 24"])
def test_images_that_are_compared_with_each_other_are_not_passed(shape: str, boxes: str, tmp_path: Path) -> None:
    result = detected(tmp_path, and_more="; seen = seen - seen.mean(0)", shape=shape, boxes=boxes)
    assert result.verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION), result.reason


SCENES = """
import torch
from torch import nn
F = nn.functional
torch.manual_seed({seed})
torch.set_default_dtype(torch.float64)
ANCHORS = 9
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.norm, self.box = nn.Linear(7, 8), {norm}, nn.Linear(8, 4)
    def forward(self, rows):
        return self.box(self.norm(self.trunk(rows).tanh()))
def scene(images):
    anchors = [torch.randperm(ANCHORS)[:int(n)] for n in torch.randint(1, ANCHORS, (images,))]
    return torch.randn(images, ANCHORS, 7), [(own, torch.rand(len(own), 4)) for own in anchors]
head = Head()
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
scenes = [scene({images}) for _ in range(12)]
for start in range(0, len(scenes), 3):
    group = scenes[start:start + 3]
    boxes = sum(len(own) for _, targets in group for own, _ in targets)
    optimizer.zero_grad()
    for rows, targets in group:
        found = head(rows)
        loss = torch.zeros(())
        for image, (own, wanted) in enumerate(targets):
            loss = loss + F.smooth_l1_loss(found[image, own], wanted, reduction="sum")
        ({loss}).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("images", "seed"), [(4, 0), (5, 1)])
def test_boxes_of_every_image_are_its_own(images: int, seed: int, tmp_path: Path) -> None:
    """An image may have as many boxes as there are images, and boxes have as many coordinates as four images."""
    parts = {"seed": seed, "images": images, "norm": "nn.Identity()"}
    right = watch_source(SCENES.format(**parts, loss="loss / boxes"), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    wrong = watch_source(SCENES.format(**parts, loss="loss / boxes / len(group)"), tmp_path)
    assert (wrong.verdict, [d.mistake.code for d in wrong.diagnosis]) == (Verdict.DEVIATES, ["GA102"]), wrong.reason


def test_images_that_are_normalized_together_are_coupled(tmp_path: Path) -> None:
    parts = {"seed": 0, "images": 5, "norm": "nn.BatchNorm1d(ANCHORS)"}
    coupled = watch_source(SCENES.format(**parts, loss="loss / boxes"), tmp_path)
    assert coupled.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, coupled.reason


DETECTIONS = """
import torch
from torch import nn
F = nn.functional
torch.manual_seed(2)
COUNTS = [[4, 4, 3, 5, 3], [3, 2, 3, 1, 4], [5, 3, 3, 3, 2], [4, 5, 3, 3, 1]]
class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.obj, self.box = nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.Conv2d(6, 1, 1), nn.Conv2d(6, 4, 1)
    def forward(self, images):
        h = torch.tanh(self.body(images)){coupling}
        return self.obj(h).flatten(1), self.box(h).flatten(2).transpose(1, 2)
def sums(records):
    obj, boxes = model(torch.stack([image for image, _, _ in records]))
    wanted, off = torch.zeros_like(obj), obj.new_zeros(())
    for j, (_, cells, own) in enumerate(records):
        wanted[j, cells] = 1.0
        off = off + F.smooth_l1_loss(boxes[j, cells], own, reduction="sum")
    return F.binary_cross_entropy_with_logits(obj, wanted, reduction="sum"), off
model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [[(torch.randn(3, 8, 8), torch.randperm(16)[:n], torch.rand(n, 4)) for n in own] for own in COUNTS]
for start in range(0, 4, 2):
    window = batches[start:start + 2]
    boxes = sum(len(cells) for batch in window for _, cells, _ in batch)
    for batch in window:
        objects, off = sums(batch)
        ((objects / (16 * sum(map(len, window))) + off / boxes) / {divisor}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_as_many_boxes_in_some_images_as_an_image_has_channels(tmp_path: Path) -> None:
    """Five images in a micro-batch, and three boxes in two of them: boxes are counted by their lists, not with images.

    Divided by 2 once more, the sums of the window's objects and boxes have half of their weight.
    """
    right = watch_source(DETECTIONS.format(coupling="", divisor=1), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    wrong = watch_source(DETECTIONS.format(coupling="", divisor="len(window)"), tmp_path)
    assert (wrong.verdict, [d.mistake.code for d in wrong.diagnosis]) == (Verdict.DEVIATES, ["GA102"])
    coupled = watch_source(DETECTIONS.format(coupling="; h = h - h.mean(0)", divisor=1), tmp_path)
    assert [d.mistake.code for d in coupled.diagnosis] == ["GA901"]
