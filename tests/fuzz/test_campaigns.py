"""Campaigns: what a seed draws is drawn again, and of every kind of disagreement the plainest variant is kept."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from gradcheck_accum.fuzz.agreement import Problem, compare
from gradcheck_accum.fuzz.campaign import kinds, run_campaign
from gradcheck_accum.fuzz.simplifying import plainest
from gradcheck_accum.fuzz.variants import Number, Objective, Variant
from gradcheck_accum.report.fuzz_text import campaign_text

LOOP = Variant(k=3, rows=(5,) * 7, units=(5,) * 7, flush="or last", scale="window")
CONSTANT = Objective(constant=Number("0.7", "weight"), operation="*")


def never_parts(variant: Variant, *, fixes: bool) -> tuple[None, tuple[Problem, ...]]:
    return None, ()


def test_a_seed_draws_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Variant] = []

    def recorded(variant: Variant, *, fixes: bool) -> tuple[None, tuple[Problem, ...]]:
        drawn.append(variant)
        return never_parts(variant, fixes=fixes)

    monkeypatch.setattr("gradcheck_accum.fuzz.campaign.judged", recorded)
    assert run_campaign(30, random_seed=4).exit_status == 0
    first, drawn = drawn, []
    run_campaign(30, random_seed=4)
    assert drawn == first and len(first) == 30
    assert any(variant.features for variant in first)


def test_the_plainest_of_every_kind_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(variant: Variant, *, fixes: bool) -> tuple[None, tuple[Problem, ...]]:
        beside = variant.objective.constant is not None
        return None, (Problem("verify: false alarm", "it is right"),) if beside and not variant.mutations else ()

    monkeypatch.setattr("gradcheck_accum.fuzz.campaign.judged", parts)
    campaign = run_campaign(30, random_seed=4)
    (one,) = campaign.disagreements
    assert one.kind == "verify: false alarm, no mistake"
    assert campaign.tally.problems[one.kind] >= 1
    assert "\ndisagreement " in campaign_text(campaign)
    # Nothing is left of it but what it takes.
    variant = eval(one.variant, {c.__name__: c for c in (Variant, Objective, Number)} | {"frozenset": frozenset})
    assert variant.features in (("objective's constant",), ("K beyond 4", "objective's constant"))
    assert variant.disguise == () and variant.layout == "script" and not variant.metrics


def test_what_a_variant_can_do_without_goes() -> None:
    drawn = replace(
        LOOP,
        objective=replace(CONSTANT, terms=3, mean=Number("3")),
        k_from="namespace",
        disguise=("comments",),
        clip="norm",
        log_every=Number("3"),
        rejects="window",
        outliers=(2,),
    )
    assert plainest(drawn, lambda v: v.objective.constant is not None and v.clip == "norm") == replace(
        Variant(k=3, rows=(1, 1), units=(1, 1)), objective=Objective(constant=Number("0.7", "weight")), clip="norm"
    )


def test_a_kind_names_the_mistake_beside() -> None:
    problems = (Problem("lint: missed", "GA101"),)
    assert kinds(LOOP, problems) == {"lint: missed, no mistake"}
    assert kinds(replace(LOOP, mutations=frozenset({"GA101"})), problems) == {"lint: missed, GA101"}
    assert kinds(replace(LOOP, mutations=frozenset({"GA101", "GA301"})), problems) == {"lint: missed, two mistakes"}


def test_what_cannot_be_known_is_counted_apart() -> None:
    every_batch = replace(LOOP, rows=(5,) * 6, units=(5,) * 6, flush="", scale="steps", mutations=frozenset({"GA304"}))
    assert compare(every_batch).undecided == ()
    # A K without a name may be a constant of the objective.
    comparison = compare(replace(every_batch, k_from="literal"))
    assert comparison.problems == ()
    assert [left for left in comparison.undecided if left.startswith("verify: passes")]


def test_what_variants_leave_behind_is_not_looked_through_by_all_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[list[int]] = []
    seen: list[int] = []

    def leaves(variant: Variant, *, fixes: bool) -> tuple[None, tuple[Problem, ...]]:
        seen.append(len(gc.get_objects()))
        kept.extend([position] for position in range(3000))
        return never_parts(variant, fixes=fixes)

    monkeypatch.setattr("gradcheck_accum.fuzz.campaign.judged", leaves)
    run_campaign(60, random_seed=4)
    # All of it is alive, and still only that of the last variant is found.
    assert len(kept) == 60 * 3000
    assert max(seen) < min(seen) + 2 * 3000
    assert gc.get_freeze_count() == 0 and gc.isenabled()
