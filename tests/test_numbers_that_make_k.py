"""Two numbers that are K by their source, and K written out as the numbers that it is computed from.

Weights are those of float64 arithmetic by hand: a micro-batch's mean that is multiplied by c has the weight c K.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

TERMS = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
BATCHES = 5
ACCUM = {accum}
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
X = torch.randn(50, 4)
Y = X[:, :1] * X[:, 1:2]
for epoch in range(3):
    optimizer.zero_grad()
    for x, y in zip(X.chunk(BATCHES), Y.chunk(BATCHES)):
        fit = F.mse_loss(model(x), y, reduction={reduction!r})
        penalty = model.weight.pow(2).sum() / {divisor}
        ((fit + penalty) / ACCUM).backward()
    optimizer.step()
"""


def of_terms(
    folder: Path, *, reduction: str, divisor: str, accum: str = "5", coefficient: float | None = None
) -> tuple[Verdict, list[str], str]:
    source = TERMS.format(reduction=reduction, divisor=divisor, accum=accum)
    result = watch_source(source, folder, loss_coefficient=coefficient)
    assert "--loss-coefficient" not in result.help
    return result.verdict, [d.mistake.code for d in result.diagnosis], " ".join(result.notes)


def test_a_penaltys_weight_that_equals_k_beside_a_sum(tmp_path: Path) -> None:
    """1/5 of the penalty five times is the penalty once: right for its sum with that of all errors, divided by 5."""
    verdict, codes, _ = of_terms(tmp_path, reduction="sum", divisor="BATCHES")
    assert (verdict, codes) == (Verdict.EQUIVALENT, [])


@pytest.mark.parametrize("coefficient", [None, 1.0])
def test_a_penaltys_weight_that_equals_k_beside_a_mean_is_open(coefficient: float | None, tmp_path: Path) -> None:
    verdict, codes, notes = of_terms(tmp_path, reduction="mean", divisor="BATCHES", coefficient=coefficient)
    assert (verdict, codes) == (Verdict.INCONCLUSIVE, [])
    assert "again with the whole loss by another number which equals it" in notes


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize(
    ("divisor", "accum"), [("ACCUM", "5"), ("BATCHES", "BATCHES"), ("BATCHES / ACCUM", "5")], ids=str
)
def test_a_penalty_that_is_divided_by_one_k_twice_is_not_passed(
    reduction: str, divisor: str, accum: str, tmp_path: Path
) -> None:
    verdict, codes, _ = of_terms(tmp_path, reduction=reduction, divisor=divisor, accum=accum)
    assert (verdict, codes) == (Verdict.DEVIATES, ["GA102"])


QUOTIENT = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
TARGET, MICRO = {target}, 8
{accum}
model = nn.Linear(5, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
X, Y = torch.randn({rows}, 5), torch.randint(0, 3, ({rows},))
batches = iter(list(zip(X.split(MICRO), Y.split(MICRO))))
for update in range(2):
    for _ in range(ACCUM):
        x, y = next(batches)
        loss = F.cross_entropy(model(x), y)
        {backward}
    optimizer.step()
    optimizer.zero_grad()
"""
FLOORED = "ACCUM = TARGET // MICRO"
SCALED = "(loss * MICRO / TARGET).backward()"


def of_quotient(
    folder: Path, *, accum: str = FLOORED, backward: str = SCALED, target: int = 48, rows: int = 96
) -> tuple[Verdict, list[str]]:
    result = watch_source(QUOTIENT.format(accum=accum, backward=backward, target=target, rows=rows), folder)
    return result.verdict, [d.mistake.code for d in result.diagnosis]


@pytest.mark.parametrize(
    "accum", [FLOORED, "ACCUM, left = divmod(TARGET, MICRO)", "ACCUM = max(1, int(TARGET / MICRO))"]
)
@pytest.mark.parametrize("backward", [SCALED, "loss.mul(MICRO / TARGET).backward()"])
def test_what_k_is_computed_from_divides_by_k(accum: str, backward: str, tmp_path: Path) -> None:
    assert of_quotient(tmp_path, accum=accum, backward=backward) == (Verdict.EQUIVALENT, [])


def test_numbers_that_k_is_not_computed_from_are_open(tmp_path: Path) -> None:
    """48 rows at once are six times 8, but nothing in the source says that this is why there are six."""
    verdict, codes = of_quotient(tmp_path, accum="ACCUM = 6")
    assert (verdict, codes) == (Verdict.INCONCLUSIVE, [])


@pytest.mark.parametrize(
    ("backward", "code"),
    [
        ("(loss * MICRO / TARGET / ACCUM).backward()", "GA102"),
        ("(loss * MICRO).backward()", "GA101"),
        ("loss.backward()", "GA101"),
    ],
)
def test_a_quotient_that_is_applied_twice_or_not(backward: str, code: str, tmp_path: Path) -> None:
    assert of_quotient(tmp_path, backward=backward) == (Verdict.DEVIATES, [code])


def test_a_quotient_that_was_rounded_down_is_no_division_by_k(tmp_path: Path) -> None:
    """Six micro-batches, each with 8/52 of its mean: 48/52 of the large batch."""
    verdict, _ = of_quotient(tmp_path, target=52)
    assert verdict is Verdict.DEVIATES


def test_a_short_micro_batch_with_a_full_ones_quotient(tmp_path: Path) -> None:
    """The last micro-batch has 3 rows, and each of them the weight of more than two."""
    verdict, codes = of_quotient(tmp_path, rows=91)
    assert (verdict, codes) == (Verdict.DEVIATES, ["GA104"])


OF_CLASSES = """
import torch, torch.nn as nn
torch.manual_seed(0)
K = 3
model = nn.Linear(4, {classes})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def criterion(out, y):
    chosen = out.log_softmax(1).gather(1, y)
    {shown}
    return -chosen.mean() / classes
for step in range(9):
    x, y = torch.randn(5, 4), torch.randint(0, {classes}, (5, 1))
    ({backward}).backward()
    if (step + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""

SIZES = ["classes = out.shape[1]", "classes = out.size(-1)", "rows, classes = out.shape", "rows, classes = out.size()"]


@pytest.mark.parametrize("classes", [3, 7])
@pytest.mark.parametrize("shown", SIZES)
def test_a_size_that_the_large_batch_has_too_scales_nothing_for_k(shown: str, classes: int, tmp_path: Path) -> None:
    """A window's rows are as wide as a micro-batch's, so its mean is divided by as many classes, whatever K is."""
    right = OF_CLASSES.format(classes=classes, shown=shown, backward="criterion(model(x), y) / K")
    result = watch_source(right, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    unscaled = OF_CLASSES.format(classes=classes, shown=shown, backward="criterion(model(x), y)")
    result = watch_source(unscaled, tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, ["GA101"])
    twice = OF_CLASSES.format(classes=classes, shown=shown, backward="criterion(model(x), y) / K / K")
    result = watch_source(twice, tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, ["GA102"])


def test_a_size_that_decides_on_a_step_is_k(tmp_path: Path) -> None:
    """Micro-batches side by side in the second dimension: its size is their number."""
    source = """
import torch, torch.nn as nn
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x, y = torch.randn(5, 3, 4), torch.randn(5, 3, 2)
    parts = x.shape[1]
    for j in range(parts):
        loss = nn.functional.mse_loss(model(x[:, j]), y[:, j])
        ({backward}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    right = watch_source(source.format(backward="loss / x.shape[1]"), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    twice = watch_source(source.format(backward="loss / parts / x.size(1)"), tmp_path)
    assert (twice.verdict, [d.mistake.code for d in twice.diagnosis]) == (Verdict.DEVIATES, ["GA102"])


@pytest.mark.parametrize(("classes", "verdict"), [(3, Verdict.INCONCLUSIVE), (7, Verdict.EQUIVALENT)])
def test_a_divisor_that_no_source_shows_and_that_equals_k_is_open(
    classes: int, verdict: Verdict, tmp_path: Path
) -> None:
    shown = "classes = sum(1 for _ in out[0])"
    source = OF_CLASSES.format(classes=classes, shown=shown, backward="criterion(model(x), y) / K")
    result = watch_source(source, tmp_path)
    assert (result.verdict, result.diagnosis) == (verdict, ())
    assert ("that equals K and that the source does not show" in " ".join(result.notes)) is (classes == 3)


CHOICE = """
import torch, torch.nn as nn
torch.manual_seed(0)
K, PARTS, SCALED = 3, {parts}, True
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(5, 4), torch.randn(5, 2)) for _ in range({batches})]
for i, (x, y) in enumerate(loader):
    divisor = {divisor}
    (nn.functional.mse_loss(model(x), y) / divisor{more}).backward()
    if (i + 1) % K == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
"""
FULL_OR_REST = "K if i < len(loader) - len(loader) % K else len(loader) % K"


@pytest.mark.parametrize("batches", [9, 11])
@pytest.mark.parametrize(("more", "codes"), [("", []), (" / K", ["GA102"])])
def test_k_or_what_remains_is_k(batches: int, more: str, codes: list[str], tmp_path: Path) -> None:
    """A window of m micro-batches, each divided by its m, is right; divided by 3 again, it weighs 1/3."""
    source = CHOICE.format(parts=3, batches=batches, divisor=FULL_OR_REST, more=more)
    result = watch_source(source, tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT), result.reason


@pytest.mark.parametrize(("parts", "verdict"), [(3, Verdict.INCONCLUSIVE), (7, Verdict.EQUIVALENT)])
def test_a_choice_of_two_numbers_does_not_show_which_it_is(parts: int, verdict: Verdict, tmp_path: Path) -> None:
    """The mean of 3 parts, or 1: an objective's constant, which equals K by chance, and no second division by it."""
    source = CHOICE.format(parts=parts, batches=9, divisor="K", more=" / (PARTS if SCALED else 1)")
    result = watch_source(source, tmp_path)
    assert (result.verdict, result.diagnosis) == (verdict, ()), result.reason


def test_what_divides_gradients_is_known_whatever_was_multiplied_before_they_were_there(tmp_path: Path) -> None:
    """A loss over 3, whose gradients are divided by 3 again, weighs 1/3 in a window of three."""
    source = """
import torch, torch.nn as nn
torch.manual_seed(0)
EVERY = 3
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(9):
    x = torch.randn(5, 4) * 0.5
    (nn.functional.mse_loss(model(x), x[:, :2]){scale}).backward()
    if (i + 1) % EVERY == 0:
        with torch.no_grad():
            for p in model.parameters():
                p.grad /= EVERY
        optimizer.step()
        optimizer.zero_grad()
"""
    twice = watch_source(source.format(scale=" / EVERY"), tmp_path)
    assert (twice.verdict, [d.mistake.code for d in twice.diagnosis]) == (Verdict.DEVIATES, ["GA102"]), twice.reason
    right = watch_source(source.format(scale=""), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason


COUNTED_BY_AN_OBJECT = """
import torch, torch.nn as nn, torch.nn.functional as F

TURNS, CLASSES = 3, 3


class Window:
    def __init__(self, optimizer, many):
        self.optimizer, self.many, self.seen = optimizer, many, 0

    def add(self, loss):
        (loss / self.many).backward()
        self.seen += 1
        return self.seen % self.many == 0

    def close(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, CLASSES)
    window = Window(torch.optim.SGD(model.parameters(), lr=0.1), TURNS)
    for _ in range(12):
        x, y = torch.randn(5, 6), torch.randint(0, CLASSES, (5,))
        if window.add(F.cross_entropy(model(x), y) / {divisor}):
            window.close()


main()
"""


@pytest.mark.parametrize(("divisor", "codes"), [("1", []), ("TURNS", ["GA102"]), ("CLASSES", [])])
def test_a_number_that_an_object_was_given_is_that_number(divisor: str, codes: list[str], tmp_path: Path) -> None:
    """What divides the loss, and what the object that counts was made with, is one constant or are two equal ones."""
    result = watch_source(COUNTED_BY_AN_OBJECT.format(divisor=divisor), tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes
    assert (result.verdict is Verdict.DEVIATES) == bool(codes)
