"""The third judge of drawn loops: each compared with itself at K = 1, on the same rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gradcheck_accum.fuzz import third_judge
from gradcheck_accum.fuzz.agreement import Problem, execute
from gradcheck_accum.fuzz.campaign import run_campaign
from gradcheck_accum.fuzz.render import render
from gradcheck_accum.fuzz.third_judge import Opinion, at_one_micro_batch, opinion
from gradcheck_accum.fuzz.variants import Number, Objective, Variant
from gradcheck_accum.report.fuzz_text import campaign_text
from gradcheck_accum.results.comparison import CompareResult
from gradcheck_accum.results.verdict import Verdict

LOOP = Variant(k=3, rows=(5,) * 7, units=(5,) * 7, flush="or last", scale="window")
TOKENS = replace(
    LOOP, model="tied", loss="ignored tokens", scale="total", rows=(2, 4, 1, 3), units=(5, 9, 3, 2), k_from="literal"
)
LOADED = replace(LOOP, rows=(4, 4, 4, 4, 3), units=(4, 4, 4, 4, 3), scale="share", data_loader=True)
CHUNKS = replace(LOOP, rows=(5,) * 6, units=(5,) * 6, boundary="chunks", scale="steps", flush="")


def rows_of(variant: Variant) -> list[torch.Tensor]:
    """All inputs and all targets of a pass, in their order."""
    names: dict[str, Any] = {}
    execute(render(variant), names)
    return [torch.cat(each) for each in zip(*names["loader"], strict=True)]


@pytest.mark.parametrize("variant", [LOOP, TOKENS, LOADED, CHUNKS])
def test_the_loop_at_k_1_has_the_same_rows(variant: Variant) -> None:
    large = at_one_micro_batch(variant)
    assert large is not None and large.k == 1
    windows = [variant.rows[start : start + 3] for start in range(0, len(variant.rows), 3)]
    assert large.rows == tuple(map(sum, windows))
    assert all(torch.equal(one, other) for one, other in zip(rows_of(variant), rows_of(large), strict=True))


@pytest.mark.parametrize(
    "variant",
    [
        replace(LOOP, k=1),
        replace(LOOP, made_in_loop=True),
        replace(LOOP, rate=Number("2")),
        replace(LOOP, objective=Objective(warm_up=Number("5"))),
        replace(TOKENS, objective=Objective(penalty=Number("0.1"))),
    ],
)
def test_what_is_counted_in_micro_batches_has_no_k_1(variant: Variant) -> None:
    assert at_one_micro_batch(variant) is None


@pytest.mark.parametrize(
    ("variant", "verdict"),
    [
        (LOOP, Verdict.EQUIVALENT),
        (TOKENS, Verdict.EQUIVALENT),
        (replace(LOOP, mutations=frozenset({"GA103"})), Verdict.DEVIATES),
        (replace(LOADED, mutations=frozenset({"GA104"})), Verdict.DEVIATES),
    ],
)
def test_compare_agrees_with_the_arithmetic(variant: Variant, verdict: Verdict) -> None:
    assert opinion(variant) == Opinion(verdict)


def test_a_loop_that_is_wrong_at_k_1_too_is_no_reference() -> None:
    assert opinion(replace(LOOP, mutations=frozenset({"GA203"}))) is None


@pytest.mark.parametrize(
    ("variant", "said", "kind"),
    [
        (LOOP, Verdict.DEVIATES, "compare: false alarm"),
        (replace(LOOP, mutations=frozenset({"GA103"})), Verdict.EQUIVALENT, "compare: false pass"),
    ],
)
def test_a_judge_that_contradicts_the_arithmetic_is_a_find(
    monkeypatch: pytest.MonkeyPatch, variant: Variant, said: Verdict, kind: str
) -> None:
    monkeypatch.setattr(third_judge, "_compared", lambda *each: CompareResult("variant.py", said, "so it seems"))
    found = opinion(variant)
    assert found is not None and [problem.kind for problem in found.problems] == [kind]


def test_a_campaign_asks_it_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Variant] = []

    def contradicts(variant: Variant) -> Opinion:
        asked.append(variant)
        return Opinion(Verdict.EQUIVALENT, (Problem("compare: false pass", "it is wrong"),))

    monkeypatch.setattr("gradcheck_accum.fuzz.campaign.judged", lambda variant, *, fixes: (None, ()))
    monkeypatch.setattr("gradcheck_accum.fuzz.campaign.opinion", contradicts)
    monkeypatch.setattr("gradcheck_accum.fuzz.campaign._COMPARED_WITH_ITSELF", 4)
    campaign = run_campaign(60, random_seed=3)
    drawn = campaign.tally.compared.total()
    assert 1 <= drawn <= 30
    # What it finds is a disagreement like another, and is made plain.
    assert all(one.kind.startswith("compare: false pass") for one in campaign.disagreements) and campaign.disagreements
    assert f"{drawn} were compared with themselves at K = 1: {drawn} equivalent" in campaign_text(campaign)
    first, asked = asked[:drawn], []
    run_campaign(60, random_seed=3)
    assert asked[:drawn] == first
