"""The examples of docs/readings.md are what verify says of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from loops_with_places import codes_in
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

SCRIPT = """
import torch
from torch.nn import functional as F
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(5, 4), torch.randn(5, 2)) for _ in range(9)]
K, HEADS, batch_size = 3, 3, 5
for i, (x, y) in enumerate(data):
    mse = F.mse_loss(model(x), y)
    ({loss}).backward()
    if (i + 1) % {steps} == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


EXAMPLES = [
    ("`mse / 3`, then `loss / K`", "mse / 3 / K", "K", Verdict.EQUIVALENT, [], 1.0),
    ("`mse / HEADS`, `HEADS = 3`, nothing else", "mse / HEADS", "K", Verdict.DEVIATES, ["GA101"], 3.0),
    ("`mse / 3`, nothing else, `% K`", "mse / 3", "K", Verdict.INCONCLUSIVE, [], None),
    ("`mse / 3`, `% 3`", "mse / 3", "3", Verdict.EQUIVALENT, [], 1.0),
    ("`loss / K / K`", "mse / K / K", "K", Verdict.DEVIATES, ["GA102"], 1 / 3),
    ("`loss / batch_size / K`", "mse / batch_size / K", "K", Verdict.DEVIATES, ["GA102"], 1 / 5),
    ("`loss / 4`, `% 3`", "mse / 4", "3", Verdict.DEVIATES, ["GA302"], 3 / 4),
]
"""The rows of the page's table, by their first cell."""


def test_every_example_of_the_page_is_here() -> None:
    page = (Path(__file__).parents[1] / "docs" / "readings.md").read_text(encoding="utf-8")
    rows = page[page.index("| loop (K = 3) |") :].partition("\n\n")[0].splitlines()[2:]
    says = {Verdict.EQUIVALENT: "right", Verdict.INCONCLUSIVE: "inconclusive"}
    for row, (loop, _, _, verdict, codes, _) in zip(rows, EXAMPLES, strict=True):
        first, reading = row.strip("|").split("|")
        assert first.strip() == loop
        assert (f"({codes[0]})" if codes else says[verdict]) in reading


@pytest.mark.parametrize(("row", "loss", "steps", "verdict", "codes", "ratio"), EXAMPLES)
def test_an_example_of_the_page(
    row: str, loss: str, steps: str, verdict: Verdict, codes: list[str], ratio: float | None, tmp_path: Path
) -> None:
    result = watch_source(SCRIPT.format(loss=loss, steps=steps), tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (verdict, codes), result.reason
    if ratio is not None:
        assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([ratio] * 3, rel=1e-5)


WINDOW = "data[i - i % K : i - i % K + K]"
FLUSH = "\noptimizer.step()\n"
REMAINDERS = [
    ("`loss / K`, nothing after the loop", "mse / K", "", ["GA301"], [1.0, 1.0]),
    ("`loss / K`, a step after the loop", "mse / K", FLUSH, ["GA103"], [1.0, 1.0, 1 / 3]),
    (
        "sums divided by the elements of the window, a step after the loop",
        f"F.mse_loss(model(x), y, reduction='sum') / sum(own.numel() for _, own in {WINDOW})",
        FLUSH,
        [],
        [1.0, 1.0, 1.0],
    ),
]
"""The rows of the page's table of remainders."""


def test_every_example_of_a_remainder_is_here() -> None:
    page = (Path(__file__).parents[1] / "docs" / "readings.md").read_text(encoding="utf-8")
    rows = page[page.index("| loop (K = 3, `% K`, 7 micro-batches) |") :].splitlines()[2:]
    for row, (loop, _, _, codes, _) in zip(rows, REMAINDERS, strict=True):
        first, reading = row.strip("|").split("|")
        assert first.strip() == loop
        assert (f"({codes[0]})" if codes else "right") in reading


@pytest.mark.parametrize(("row", "loss", "after", "codes", "ratios"), REMAINDERS)
def test_an_example_of_a_remainder(
    row: str, loss: str, after: str, codes: list[str], ratios: list[float], tmp_path: Path
) -> None:
    source = SCRIPT.format(loss=loss, steps="K").replace("range(9)", "range(7)") + after
    result = watch_source(source, tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT), result.reason
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx(ratios, rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "before", "batch", "lint"),
    [
        # A coefficient that equals K and the rows, next to K, is no sum over them.
        ("2 * mse / K", "K = 2", 2, []),
        ("mse * coefficient / K", "K, coefficient = 2, 2", 2, []),
        # A literal that a function is given is a literal all the same.
        ("scaled(mse, 2)", "K = 2\ndef scaled(loss, parts):\n    return loss / parts", 5, []),
    ],
)
def test_coincidences_of_a_right_loop(loss: str, before: str, batch: int, lint: list[str], tmp_path: Path) -> None:
    steps = "2" if "scaled" in loss else "K"
    source = SCRIPT.format(loss=loss, steps=steps).replace("K, HEADS, batch_size = 3, 3, 5", before)
    source = source.replace("range(9)", "range(8)").replace("randn(5,", f"randn({batch},")
    result = watch_source(source, tmp_path)
    assert result.verdict is not Verdict.DEVIATES and result.diagnosis == ()
    assert codes_in(source) == lint
    if "scaled" not in loss:
        assert result.verdict is Verdict.EQUIVALENT


@pytest.mark.parametrize("loss", ["3 * mse / K / K", "HEADS * mse / K / K", "HEADS * mse / K / len(x)"])
def test_a_coefficient_undoes_no_second_division(loss: str, tmp_path: Path) -> None:
    source = SCRIPT.format(loss=loss, steps="K").replace("randn(5,", "randn(3,")
    result = watch_source(source, tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, ["GA102"])
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([1 / 3] * 3, rel=1e-5)


def test_the_options_that_settle_it_do(tmp_path: Path) -> None:
    source = SCRIPT.format(loss="mse / 3", steps="K")
    (note,) = (note for note in watch_source(source, tmp_path).notes if "--loss-coefficient" in note)
    assert "the division by 3 of" in note and "line 11" in note
    assert "belongs to the accumulation, state --loss-coefficient 1;" in note
    assert "objective, state --loss-coefficient 0.333333" in note
    assert watch_source(source, tmp_path, loss_coefficient=1.0).verdict is Verdict.EQUIVALENT
    wrong = watch_source(source, tmp_path, loss_coefficient=1 / 3)
    assert (wrong.verdict, wrong.diagnosis[0].mistake.code) == (Verdict.DEVIATES, "GA101")
