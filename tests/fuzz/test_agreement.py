"""Drawn loops: lint, verify and plain arithmetic say the same of each, and every planted mistake is found."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, note, settings

from gradcheck_accum.fuzz.agreement import compare, still_wrong_once_fixed
from gradcheck_accum.fuzz.campaign import run_campaign
from gradcheck_accum.fuzz.render import render
from gradcheck_accum.fuzz.strategies import variants
from gradcheck_accum.fuzz.variants import OPERATORS, Variant
from gradcheck_accum.report.fuzz_text import campaign_text
from gradcheck_accum.results.fuzzing import Campaign, Disagreement, Interrupted, Tally

drawn = settings(phases=(Phase.generate, Phase.shrink))


@pytest.mark.slow
@settings(drawn, max_examples=40)
@given(variants())
def test_the_engines_agree(variant: Variant) -> None:
    comparison = compare(variant)
    note(comparison.source)
    assert comparison.problems == ()


@pytest.mark.slow
@settings(drawn, max_examples=40)
@given(variants(widened=True))
def test_the_engines_agree_on_wider_loops(variant: Variant) -> None:
    comparison = compare(variant)
    note(comparison.source)
    assert comparison.problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_every_mistake_is_found(name: str) -> None:
    shown = 0

    @settings(drawn, max_examples=4)
    @given(variants((name,)))
    def check(variant: Variant) -> None:
        nonlocal shown
        comparison = compare(variant)
        note(comparison.source)
        assert comparison.problems == ()
        assert "verify: inconclusive" not in comparison.undecided or comparison.truth.open_to_verify
        shown += OPERATORS[name].code in comparison.truth.demanded

    check()
    assert shown


@pytest.mark.slow
@settings(drawn, max_examples=8)
@given(variants(1))
def test_what_lint_fixes_is_equivalent(variant: Variant) -> None:
    comparison = compare(variant)
    note(comparison.source)
    assert still_wrong_once_fixed(comparison) == ()


def test_a_clean_variant_is_the_loop_that_it_says() -> None:
    variant = Variant(k=2, rows=(2, 2, 2), units=(2, 2, 2), flush="or last", scale="window")
    comparison = compare(variant)
    # Worked out by hand: two halves, and the remainder by itself.
    weights = [[line.coefficient for line in page.lines] for page in comparison.dynamic[0]]
    assert weights == [[0.5, 0.5], [1.0]]
    assert [[line.coefficient for line in page.lines] for page in comparison.static[0]] == weights


def test_a_disguise_changes_no_ledger() -> None:
    plain = Variant(k=2, rows=(1, 1, 1), units=(1, 1, 1), flush="after", scale="window", mutations=frozenset({"GA103"}))
    disguised = Variant(
        k=2,
        rows=(1, 1, 1),
        units=(1, 1, 1),
        flush="after",
        scale="window",
        mutations=frozenset({"GA103"}),
        disguise=("names of others", "comments", "dead code"),
    )
    assert "accumulation_steps" in render(disguised) and "accumulation_steps" not in render(plain)
    one, other = compare(plain), compare(disguised)
    assert [[line.coefficient for line in page.lines] for page in one.dynamic[0]] == [
        [line.coefficient for line in page.lines] for page in other.dynamic[0]
    ]
    assert {code for _, code in one.found} == {code for _, code in other.found} == {"GA103"}


def test_a_campaign_counts_what_it_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradcheck_accum.fuzz.campaign.variants", lambda widened: variants())
    campaign = run_campaign(12, random_seed=1)
    tally = campaign.tally
    assert (tally.variants, campaign.disagreements, campaign.exit_status) == (12, (), 0)
    assert tally.boundaries.total() == 12
    found = {
        name: (tally.killed[engine, name], many)
        for (engine, name), many in tally.demanded.items()
        if engine == "verify"
    }
    assert found and all(killed == many for killed, many in found.values())
    text = campaign_text(campaign)
    assert "12 variants" in text and text.endswith("the engines agree on every variant")


def test_an_interrupted_campaign_keeps_its_counts() -> None:
    def stop(done: int, of: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as cut:
        run_campaign(12, random_seed=1, progress=stop)
    assert isinstance(cut.value.so_far, Campaign)
    assert cut.value.so_far.tally.variants == 5


def test_a_disagreement_is_shown_with_both_ledgers_side_by_side() -> None:
    parted = Disagreement("loss.backward()\n", ("the ledgers part in window 0",), ("step at line 3: 0:0.5",), ())
    campaign = Campaign(Tally(variants=1, seconds=1.0), (parted,))
    assert campaign_text(campaign).endswith("1 kind of disagreement")
    lines = campaign_text(campaign).splitlines()
    assert lines[:3] == ["the ledgers part in window 0", "", "   1 loss.backward()"]
    assert "step at line 3: 0:0.5  -" in lines
    assert campaign.exit_status == 1
