"""What messages state: what the source shows is a fact, and what was assumed of it is stated as a condition."""

from __future__ import annotations

import re

import pytest

from gradcheck_accum.lint import lint_source

LOOP = """\
import torch
from torch import nn

def train(model, loader, optimizer, criterion, {parameter}):
    {loader}
    for epoch in range(2):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.mse_loss(model(x), y){scaling}
            loss.backward()
            if {boundary}:
                {before}
                optimizer.step()
                {clearing}
"""
OF_SEVEN = "loader = [(torch.randn(2, 5), torch.randn(2, 3)) for _ in range(7)]"
EVERY_K = "(i + 1) % K == 0"
AND_LAST = "(i + 1) % K == 0 or i + 1 == len(loader)"


def message(
    code: str,
    *,
    parameter: str = "K",
    loader: str = "pass",
    scaling: str = " / K",
    boundary: str = EVERY_K,
    before: str = "pass",
    clearing: str = "optimizer.zero_grad()",
) -> str:
    source = LOOP.format(
        parameter=parameter, loader=loader, scaling=scaling, boundary=boundary, before=before, clearing=clearing
    )
    (found,) = (f for f in lint_source(source, "train.py") if f.mistake.code == code)
    return found.message


def numbers(text: str) -> list[str]:
    """The numbers of a message, but for those of lines."""
    return re.findall(r"\d+", re.sub(r"line \d+", "", text))


def test_a_remainder_of_a_loader_of_unknown_length_is_a_condition() -> None:
    said = message("GA301")
    assert "if the loader's length is not a multiple of K" in said
    assert numbers(said) == []
    assert "taking" not in said


def test_a_remainder_that_the_source_shows_is_a_fact() -> None:
    said = message("GA301", loader=f"K = 3; {OF_SEVEN}")
    assert "1 micro-batch" in said
    assert "if the loader" not in said


def test_a_k_that_is_written_down_is_said() -> None:
    said = message("GA301", loader="K = 3")
    assert "if the loader's length is not a multiple of 3" in said
    assert numbers(said) == ["3", "3"]


def test_a_misscaled_remainder_of_unknown_length_has_no_weight() -> None:
    said = message("GA103", boundary=AND_LAST)
    assert "if the loader's length is not a multiple of K" in said
    assert numbers(said) == []


def test_a_misscaled_remainder_that_the_source_shows_has_one() -> None:
    said = message("GA103", boundary=AND_LAST, loader=f"K = 3; {OF_SEVEN}")
    assert "holds 1 micro-batch, but the loss is still divided by 3: each is weighted 0.3333x" in said


def test_how_many_earlier_micro_batches_stand_is_known_where_their_number_is() -> None:
    said = message("GA203", clearing="pass")
    assert "still includes the micro-batches of earlier windows" in said
    assert numbers(said) == []
    source = LOOP.replace("        optimizer.zero_grad()\n        for", "        for")
    source = source.format(
        parameter="_", loader=f"K = 3; {OF_SEVEN}", scaling=" / K", boundary=EVERY_K, before="pass", clearing="pass"
    )
    (found,) = (f for f in lint_source(source, "train.py") if f.mistake.code == "GA203")
    assert "still includes 10 micro-batches of earlier windows" in found.message


@pytest.mark.parametrize("code", ["GA402", "GA602"])
def test_what_does_not_depend_on_k_does_not_name_it(code: str) -> None:
    places = {
        "GA402": {"clearing": "optimizer.zero_grad(); nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        "GA602": {"scaling": " / K; average.update_parameters(model)", "parameter": "average, K"},
    }[code]
    source = LOOP.format(**{
        "parameter": "K", "loader": "average = torch.optim.swa_utils.AveragedModel(model)", "scaling": " / K",
        "boundary": EVERY_K, "before": "pass", "clearing": "optimizer.zero_grad()", **places,
    })  # fmt: skip
    (found,) = (f for f in lint_source(source, "train.py") if f.mistake.code == code)
    assert "taking" not in found.message


def test_the_help_says_k_as_the_source_does() -> None:
    source = LOOP.format(
        parameter="accumulate",
        loader="pass",
        scaling="",
        boundary="(i + 1) % accumulate == 0",
        before="pass",
        clearing="optimizer.zero_grad()",
    )
    (found,) = (f for f in lint_source(source, "train.py") if f.mistake.code == "GA101")
    assert found.help == "divide the loss by accumulate (the accumulation steps) before backward()"
    assert found.message.endswith("(taking accumulate as 4)")


def test_only_what_windows_are_counted_by_is_taken() -> None:
    source = LOOP.format(
        parameter="K, log_every",
        loader="pass",
        scaling="",
        boundary=EVERY_K,
        before="pass",
        clearing="optimizer.zero_grad()\n            if i % log_every == 0:\n                print(i)",
    )
    (found,) = (f for f in lint_source(source, "train.py") if f.mistake.code == "GA101")
    assert found.message.endswith("(taking K as 4)")


def test_a_size_of_batches_that_nobody_wrote_is_not_said() -> None:
    said = message("GA102", loader="K = 3", scaling=" / len(x) / K")
    assert "also divided by the batch size" in said
    assert "each is weighted only 1/(batch size) relative to" in said
    assert numbers(said.replace("1/(batch size)", "")) == ["3"]
    shown = message("GA102", loader=f"K = 3; {OF_SEVEN}", scaling=" / x.size(0) / K")
    assert "(1/2: also divided by the batch size)" in shown
