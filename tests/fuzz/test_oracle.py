"""The arithmetic that judges drawn loops is what PyTorch computes, and says what no reader could tell."""

from __future__ import annotations

import contextlib
import io
import math
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import Phase, assume, given, note, settings

from gradcheck_accum.fuzz.agreement import execute
from gradcheck_accum.fuzz.oracle import (
    A_NUMBER_IN_ANOTHER_ROLE,
    AMBIGUITIES,
    EVERY_MICRO_BATCH_STEPS,
    simulations,
    truth,
)
from gradcheck_accum.fuzz.render import render
from gradcheck_accum.fuzz.strategies import variants
from gradcheck_accum.fuzz.variants import OPERATORS, PLAIN, Number, Objective, Variant

LOOP = Variant(k=3, rows=(5,) * 7, units=(5,) * 7, flush="or last", scale="window")
"""Two windows of three and a remainder of one, five rows in each."""


def gradients(variant: Variant) -> list[torch.Tensor]:
    """What the model's optimizer gets at every step of the script, which leaves the weights where they are."""
    source = render(variant).replace("lr=0.1", "lr=0.0").replace("lr=0.01", "lr=0.0")
    # A loader that is gone through draws a number too.
    source = source.replace("\nmodel = ", "\ntorch.default_generator.manual_seed(1)\nmodel = ")
    source = re.sub("^optimizer = (.*)$", r"optimizer = recorded(\1)", source, flags=re.MULTILINE)
    steps: list[torch.Tensor] = []

    def recorded(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        def take(*_: object) -> None:
            groups = [p for group in optimizer.param_groups for p in group["params"]]
            steps.append(
                torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in groups])
            )

        optimizer.register_step_pre_hook(take)
        return optimizer

    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(source, "variant.py", "exec"), {"__name__": "__main__", "recorded": recorded})
    return steps


@settings(phases=(Phase.generate,), max_examples=60)
@given(variants(widened=True))
def test_the_arithmetic_is_what_pytorch_computes(variant: Variant) -> None:
    # A clip, a grad scaler and bfloat16 change what a step sees; large batches that are cut up are drawn otherwise.
    assume(not variant.amp and variant.boundary != "chunks" and not variant.has("GA902") and not variant.batch_norm)
    # What is drawn in the loop is other data in each pass.
    assume(not variant.made_in_loop or variant.epochs == 1)
    variant = replace(variant, clip="", double=True, disguise=(), schedule="", average=False)
    variant = replace(variant, mutations=frozenset(m for m in variant.mutations if OPERATORS[m].slot not in _BESIDE))
    # The gradient of each micro-batch's objective: plain training on them, one by one, of the same weights and data.
    alone = replace(
        variant,
        boundary=PLAIN,
        k=1,
        scale="total" if variant.scale == "total" else "whole",
        flush="",
        mutations=frozenset(),
        clears_first=False,
        clearing="optimizer",
        rejects="",
        layout="script",
        rate=None,
        epochs=1,
    )
    if variant.scale == "total":
        variant, alone = replace(variant, scale="share"), replace(alone, scale="whole")
    note(render(variant))
    each = gradients(alone)
    run = simulations(variant)[0]
    wanted = [
        sum((float(c) * each[run.positions[i]] for i, c in step.gradient.items()), torch.zeros_like(each[0]))
        for step in run.steps
    ]
    read = gradients(variant)
    assert len(read) == len(wanted)
    for one, other in zip(read, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


_BESIDE = frozenset({"clip", "scaler", "schedule", "average", "graphs", "metrics"})


@pytest.mark.parametrize(
    ("variant", "verdict"),
    [
        # Two windows of three, and one of one: thirds, and a whole.
        (LOOP, "equivalent"),
        (replace(LOOP, scale="steps"), "deviates"),
        (replace(LOOP, mutations=frozenset({"GA101"})), "deviates"),
        # A constant of the objective is none of the accumulation's, whatever it is equal to.
        (replace(LOOP, objective=Objective(constant=Number("3"))), "equivalent"),
        (replace(LOOP, objective=Objective(constant=Number("0.7"), operation="*")), "equivalent"),
        (replace(LOOP, objective=Objective(terms=3, mean=Number("3"))), "equivalent"),
        (replace(LOOP, objective=Objective(warm_up=Number("3"))), "equivalent"),
        # A whole window is discarded on purpose; what there was of another is missing from it.
        (replace(LOOP, loss="mse", rejects="window", outliers=(5,)), "equivalent"),
        (replace(LOOP, loss="mse", rejects="batch", outliers=(4,)), "deviates"),
        # The last of a window, with which all of it goes, and its step.
        (replace(LOOP, loss="mse", rejects="batch", outliers=(5,)), "equivalent"),
        (replace(LOOP, rows=(5,) * 6, units=(5,) * 6, rate=Number("2")), "equivalent"),
        (
            replace(LOOP, boundary=PLAIN, k=1, scale="whole", flush="", objective=Objective(constant=Number("10"))),
            "equivalent",
        ),
    ],
)
def test_verdicts_worked_out_by_hand(variant: Variant, verdict: str) -> None:
    assert truth(variant).verdict == verdict


def test_a_window_without_its_first_two_weighs_a_third() -> None:
    (run,) = simulations(replace(LOOP, loss="mse", rejects="batch", outliers=(4,)))
    assert [step.gradient for step in run.steps] == [
        {0: Fraction(1, 3), 1: Fraction(1, 3), 2: Fraction(1, 3)},
        {4: Fraction(1, 3)},
        {5: Fraction(1)},
    ]


FULL = replace(LOOP, rows=(5,) * 6, units=(5,) * 6, flush="", scale="steps")
UNSCALED = replace(FULL, mutations=frozenset({"GA101"}))
TWICE = replace(FULL, mutations=frozenset({"GA102"}))


@pytest.mark.parametrize(
    ("variant", "ambiguity"),
    [
        (UNSCALED, ""),
        # criterion(...) / 3: the objective's, or a window's of three.
        (replace(UNSCALED, objective=Objective(constant=Number("3"))), A_NUMBER_IN_ANOTHER_ROLE),
        (replace(UNSCALED, objective=Objective(constant=Number("2"))), ""),
        # A name of its own is none of K's, where K has one.
        (replace(UNSCALED, objective=Objective(constant=Number("3", "SCALE"))), ""),
        (
            replace(UNSCALED, objective=Objective(constant=Number("3", "SCALE")), k_from="literal"),
            A_NUMBER_IN_ANOTHER_ROLE,
        ),
        (replace(UNSCALED, objective=Objective(constant=Number("3", "num_heads")), k_from="literal"), ""),
        # (fit + spread + size) / 3
        (replace(UNSCALED, objective=Objective(terms=3, mean=Number("3"))), A_NUMBER_IN_ANOTHER_ROLE),
        # A second division by K is recognized by its name, but not as a bare number.
        (TWICE, ""),
        (replace(TWICE, k_from="literal"), A_NUMBER_IN_ANOTHER_ROLE),
        # A remainder tells it: no constant is right for a window of three and one of one.
        (replace(LOOP, objective=Objective(constant=Number("3")), mutations=frozenset({"GA101"})), ""),
        (replace(FULL, mutations=frozenset({"GA304"})), EVERY_MICRO_BATCH_STEPS),
    ],
)
def test_what_no_reader_could_tell(variant: Variant, ambiguity: str) -> None:
    assert truth(variant).verdict == "deviates"
    assert truth(variant).ambiguity == ambiguity
    assert not ambiguity or ambiguity in AMBIGUITIES


def test_by_how_much_a_loop_is_wrong_may_be_open() -> None:
    beside_2 = replace(UNSCALED, objective=Objective(constant=Number("2")))
    assert truth(beside_2).level_is_open and not truth(replace(beside_2, mutations=frozenset())).level_is_open
    assert not truth(replace(UNSCALED, objective=Objective(constant=Number("2", "SCALE")))).level_is_open


@pytest.mark.parametrize(
    ("mean", "k_from", "may_be"),
    [
        # (fit + spread) / 2, which is summed for display, where the source counts to 2: the division by K, or a mean.
        (Number("2"), "literal", True),
        (Number("2"), "K", True),
        (Number("2", "num_heads"), "literal", False),
        (Number("3"), "literal", False),
    ],
)
def test_a_displayed_loss_may_be_a_divided_one_only_if_its_source_reads_so(
    mean: Number, k_from: str, may_be: bool
) -> None:
    left = Variant(k=2, rows=(1,) * 3, units=(1,) * 3, metrics=True, mutations=frozenset({"GA101"}), k_from=k_from)
    true = truth(replace(left, objective=Objective(terms=2, mean=mean)))
    assert ("GA802" in true.allowed) == may_be
    assert "GA802" not in truth(replace(left, mutations=frozenset(), objective=Objective(terms=2, mean=mean))).allowed


def test_of_two_mistakes_none_is_demanded() -> None:
    assert truth(UNSCALED).demanded == {"GA101"}
    assert truth(replace(UNSCALED, clip="norm", mutations=frozenset({"GA101", "GA401"}))).demanded == frozenset()


@pytest.mark.parametrize(
    ("constant", "k_from", "demanded"),
    [
        # count > 8 with / 8: windows of nine, and one micro-batch that is left. With / 9 too, these windows are right.
        (Number("9"), "literal", set()),
        (Number("9", "SCALE"), "literal", set()),
        (Number("9", "SCALE"), "K", {"GA302"}),
        (Number("9", "num_heads"), "literal", {"GA302"}),
        (Number("7"), "literal", {"GA302"}),
    ],
)
def test_a_cause_is_demanded_unless_another_reading_leaves_only_what_was_lost(
    constant: Number, k_from: str, demanded: set[str]
) -> None:
    late = Variant(k=8, rows=(1,) * 10, units=(1,) * 10, boundary="counter", mutations=frozenset({"GA302"}))
    true = truth(replace(late, objective=Objective(constant=constant), k_from=k_from))
    assert (true.verdict, true.demanded) == ("deviates", demanded)
    assert "GA301" in true.allowed


@settings(phases=(Phase.generate,), max_examples=40)
@given(variants(("GA401",), widened=True))
def test_every_clip_shortens_the_gradient_that_it_is_given(variant: Variant) -> None:
    """Whatever the objective and the loop divide by: otherwise a clip before the window is complete is no mistake."""
    norms: list[float] = []

    def clip(parameters: Iterable[torch.Tensor], limit: float, norm: float) -> None:
        every = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        norms.append(float(torch.linalg.vector_norm(every, norm)) / limit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", lambda parameters, limit: clip(parameters, limit, 2.0))
        patch.setattr(torch.nn.utils, "clip_grad_value_", lambda parameters, limit: clip(parameters, limit, math.inf))
        execute(render(variant), {})
    assert norms and min(norms) > 1.0, min(norms)


def test_nothing_may_be_said_of_a_right_loop() -> None:
    for objective in (Objective(), Objective(constant=Number("3")), Objective(terms=2, mean=Number("2"))):
        assert truth(replace(FULL, objective=objective)).allowed == frozenset()


def test_a_mistake_has_consequences_that_may_be_said() -> None:
    true = truth(replace(FULL, mutations=frozenset({"GA302"})))
    # Windows of one and of three, and two that are left: no more has to be reported than that it is off by one.
    assert true.demanded == {"GA302"}
    assert "GA301" in true.allowed and "GA402" not in true.allowed


PLACES: dict[str, Callable[[str], bool]] = {
    "accum": lambda source: "accum = 3\n" in source and "(i + 1) % accum == 0" in source,
    "literal": lambda source: "(i + 1) % 3 == 0" in source and "raw / 3" in source,
    "argument": lambda source: "def train(K):" in source and "\ntrain(3)\n" in source and "\nK = 3\n" not in source,
    "config": lambda source: '% config["accum"] == 0' in source,
    "namespace": lambda source: "% args.n_micro == 0" in source,
}


@pytest.mark.parametrize("place", PLACES)
def test_k_is_written_elsewhere(place: str) -> None:
    variant = replace(FULL, k_from=place, layout="function" if place == "argument" else "script")
    source = render(variant)
    assert PLACES[place](source), source
    own, plain = gradients(replace(variant, double=True)), gradients(replace(FULL, double=True))
    assert len(own) == len(plain) == 2
    assert all(one.equal(other) for one, other in zip(own, plain, strict=True))


def test_plain_training_writes_no_k() -> None:
    source = render(replace(FULL, boundary=PLAIN, k=1, scale="whole", seed=3))
    assert "K" not in source.replace("KL", "") and "loss.backward()" in source


def test_every_wider_dimension_is_drawn() -> None:
    seen: set[str] = set()

    @settings(phases=(Phase.generate,), max_examples=400)
    @given(variants(widened=True))
    def draw(variant: Variant) -> None:
        seen.update(variant.features)

    draw()
    assert seen == {
        "K beyond 4",
        "K elsewhere",
        "plain training",
        "objective's constant",
        "several losses",
        "warm-up",
        "penalty",
        "temperature",
        "log modulus",
        "evaluation modulus",
        "rejects: never",
        "rejects: window",
        "rejects: batch",
        "data made in the loop",
        "two rates",
    }


@settings(phases=(Phase.generate,), max_examples=100)
@given(variants())
def test_other_loops_are_drawn_as_they_were(variant: Variant) -> None:
    assert variant.features == ()
