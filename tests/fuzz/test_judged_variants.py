"""Variants of which the engines and the arithmetic say the same: each was judged differently by one of them once."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from dataclasses import replace

import pytest
from labelled_loops import LabelledLoop, labelled_loops

from gradcheck_accum.fuzz.agreement import compare
from gradcheck_accum.fuzz.campaign import judged
from gradcheck_accum.fuzz.oracle import truth
from gradcheck_accum.fuzz.render import render
from gradcheck_accum.fuzz.tokens import contents
from gradcheck_accum.fuzz.variants import Number, Objective, Variant

FOUND = labelled_loops("""\
## A number that is K, or one below it, and is something else
#: GA501: a constant equals the literal K that a function is given the minimum of
k=2, rows=(2,) * 4, units=(6,) * 4, scale="window", spelling="function", loss="mse", optimizer="RMSprop",
clip="norm", amp="scaler", double=False, metrics=True, seed=232, mutations={"GA501"},
objective=Objective(constant=Number("2"), temperature=Number("2")), k_from="literal"

#: right: the right loop with that minimum and that constant
k=2, rows=(2,) * 4, units=(6,) * 4, scale="window", spelling="function", loss="mse", metrics=True,
objective=Objective(constant=Number("2")), k_from="literal"

#: GA103: a bare number of the objective that is K, in a loop whose remainder that would misscale
k=3, rows=(2,) * 7, boundary="i from 1", flush="or last", scale="window", loss="functional", layout="function",
mutations={"GA101"}, objective=Objective(constant=Number("3")), k_from="literal"

#: GA302: a literal K that the windows exceed by one, and that is the number of rows
k=2, rows=(2,) * 6, boundary="counter", flush="or last", spelling="method", loss="functional", optimizer="AdamW",
clearing="zeros", amp="autocast", double=False, data_loader=True, metrics=True, seed=98, mutations={"GA302"},
k_from="literal"

#: GA302: a constant that equals K, and a product with 1 over a window's length, in windows that step too early
k=5, rows=(3,) * 16, units=(9,) * 16, boundary="K - 1", flush="or last", scale="window", spelling="inverse",
model="tied", loss="tokens", optimizer="Adam", clearing="none", amp="scaler", double=False, seed=200,
mutations={"GA302", "GA502"}, objective=Objective(constant=Number("5", "loss_weight"), after=True), k_from="config"

#: GA602: a division by K that a constant undoes, of batches of two rows
k=2, rows=(2,) * 6, epochs=2, boundary="running count", spelling="statement", model="attention", loss="functional",
optimizer="momentum", clearing="zeros", clip="value", double=False, schedule="steps", average=True, seed=20,
mutations={"GA602"}, objective=Objective(constant=Number("2"), operation="*", after=True), k_from="literal"

#: GA102: a mean divided by K and by a number of rows that equals K
k=3, rows=(3,) * 6, boundary="not modulo", scale="window", spelling="in place", model="mlp", loss="functional",
optimizer="RMSprop", clears_first=True, clip="norm", amp="autocast", double=False, metrics=True, seed=870,
mutations={"GA102:rows"}, k_from="literal", log_every=Number("3")

#: GA302: a constant one below K
k=3, rows=(1,) * 8, units=(3,) * 8, boundary="continue", flush="after", scale="window", spelling="statement",
model="attention", loss="mse", clearing="model", pair=True, metrics=True, seed=451, mutations={"GA101"},
objective=Objective(constant=Number("2"), after=True), k_from="literal", made_in_loop=True

#: right: a mean of two terms in windows of two
k=2, rows=(3,) * 8, units=(9,) * 8, boundary="chunks", model="tied", loss="tokens", optimizer="AdamW", double=False,
layout="function", schedule="decay", metrics=True, seed=200, objective=Objective(terms=2, mean=Number("2")),
k_from="literal"

#: GA102: a second division by K, which is the number of a loss and the penalties of its two weights
k=3, rows=(4,) * 6, boundary="islice", scale="window", spelling="function", clearing="none", data_loader=True,
layout="class", metrics=True, mutations={"GA102"}, objective=Objective(penalty=Number("0.01", "decay")),
k_from="accum"

#: right: a sum that is divided by the units of its window, and multiplied by a constant that equals K
k=7, rows=(2, 3, 3, 1, 4, 1, 1, 4, 3), boundary="islice", scale="total", loss="cross entropy", clearing="model",
seed=74, objective=Objective(constant=Number("7", "num_heads"), operation="*"), k_from="namespace"

#: GA301, GA802 (lint): a bare mean of two terms, where K is two, reads as the division by K, and what is summed for
#: display as a divided loss
k=2, rows=(1,) * 3, metrics=True, mutations={"GA101"}, objective=Objective(terms=2, mean=Number("2")),
k_from="literal"

## A number that is the rows of a window
#: GA101: a bare number that is the rows of a window, of losses that are not divided by K
k=2, rows=(2,) * 4, units=(6,) * 4, boundary="nested", scale="window", spelling="function", loss="mse",
optimizer="momentum", clip="norm", double=False, average=True, seed=564, mutations={"GA101"},
objective=Objective(constant=Number("4")), k_from="literal"

#: GA102, GA302: a window of three micro-batches of three rows each, for K=4
k=4, rows=(3,) * 8, boundary="counter", flush="or last", double=False, mutations={"GA102:rows", "GA302"}

#: GA102, GA302: windows that are all one long, of losses that are divided by as many rows too
k=2, rows=(3,) * 6, boundary="counter", double=False, mutations={"GA102:rows", "GA302"}

#: right: a sum that is divided by the units of its window, in windows that hold as many as a constant is
k=9, rows=(3,) * 19, flush="or last", scale="total", objective=Objective(constant=Number("27", "TEMPERATURE"))

#: GA201: the same, with a remainder of fewer units, and what was not cleared
k=9, rows=(3,) * 11 + (2,), flush="or last", scale="total", mutations={"GA201:late"},
objective=Objective(constant=Number("27", "TEMPERATURE"))

## Windows that are closed too early, of losses that count the units of those that were meant
#: GA103 (verify), GA302: every window that was meant holds six rows; closed are three, five and four
k=3, rows=(3, 1, 2, 2, 2, 2), flush="or last", scale="share", layout="helpers", mutations={"GA302"}

#: GA103, GA302: the same sum, divided
k=3, rows=(3, 1, 2, 2, 2, 2), flush="or last", scale="total", mutations={"GA302"}

#: GA301, GA302: windows that were meant to hold unlike numbers of rows
k=2, rows=(1, 3, 2, 3, 2, 1), scale="total", mutations={"GA302"}

## A literal K that no window holds, beside a constant that is what they hold
#: GA302: a constant with a name of its own
k=2, rows=(1,) * 6, units=(3,) * 6, boundary="counter", loss="smooth l1", mutations={"GA302"},
objective=Objective(constant=Number("3", "num_heads")), k_from="literal"

#: GA301, GA302: the same in one window of nine, and one micro-batch more
k=8, rows=(1,) * 10, units=(3,) * 10, boundary="counter", loss="smooth l1", mutations={"GA302"},
objective=Objective(constant=Number("9", "SCALE")), k_from="literal"

## Windows that are too short, beside a minimum of K and what remains
#: GA103, GA302, GA303: a function is given the minimum of a literal K and what remains, in windows that are cleared
#: too early
k=2, rows=(2,) * 4, flush="or last", scale="window", loss="functional", clearing="none", layout="helpers", seed=407,
mutations={"GA201:late", "GA302"}, k_from="literal"

#: GA103, GA302, GA303: a literal K in a minimum, of windows that are closed and cleared too early
k=2, rows=(2,) * 4, flush="or last", scale="window", spelling="in place", model="rnn", loss="functional",
optimizer="RMSprop", clearing="none", layout="function", metrics=True, seed=407, mutations={"GA201:late", "GA302"},
k_from="literal"

#: GA302: K counted from 0, a minimum with K, and rows that divide a mean
k=3, rows=(2,) * 8, boundary="i from 1", flush="or last", scale="window", spelling="method", optimizer="Adam",
double=False, seed=214, mutations={"GA102:rows", "GA302"}

#: right: passes that are all shorter than K, of losses that are divided by their number
k=4, rows=(3,) * 3, epochs=3, boundary="counter", flush="or last", scale="window"

#: GA101, GA302: two windows that are short, around one that is not, of losses that nothing divides
k=3, rows=(1,) * 7, boundary="i from 1", flush="or last", double=False, mutations={"GA101", "GA302"}

#: GA103, GA302: windows of two, three and two, of losses that are multiplied by a third
k=3, rows=(4,) * 7, boundary="i from 1", flush="or last", scale="window", spelling="inverse",
mutations={"GA302", "GA103"}

#: GA103, GA302: windows of three, four and three, of losses that are multiplied by a fourth
k=4, rows=(4,) * 10, boundary="i from 1", flush="or last", scale="window", spelling="inverse",
mutations={"GA302", "GA103"}

## Remainders that leak
#: GA301: a remainder that is cleared where the first window of the next pass begins
k=5, rows=(1,) * 11, epochs=2, flush="after", scale="window", clears_first=True, mutations={"GA301"}

#: GA301, GA503: a remainder that leaks, beside steps whose gradients overflowed
k=2, rows=(1,) * 5, units=(3,) * 5, epochs=2, scale="window", model="attention", loss="mse", amp="scaler",
double=False, mutations={"GA301", "GA503"}

#: GA301, GA503: a remainder that leaks, beside gradients that were divided by hand and of which some have overflowed
k=2, rows=(1,) * 5, units=(3,) * 5, epochs=2, scale="gradients", model="attention", loss="mse", amp="scaler",
double=False, mutations={"GA301", "GA503"}

#: GA301, GA601: a schedule for the six steps that are made where none is dropped, and which moves 22 times
k=4, rows=(1,) * 11, epochs=2, scale="window", schedule="steps", mutations={"GA301", "GA601"}

#: GA301: a remainder that leaks, of losses divided by the units of their windows
k=2, rows=(2, 2, 2, 2, 1), epochs=2, scale="total", double=False, data_loader=True, mutations={"GA301"}

#: GA301: a remainder in a while loop, for which the epochs around it were asked whether they are at their end
k=4, rows=(1,) * 10, units=(3,) * 10, epochs=2, boundary="while", scale="gradients", model="tied", loss="tokens",
double=False, mutations={"GA301"}

#: GA201, GA401: a remainder of which what was not cleared weighs what one of the other windows weighs
k=3, rows=(2,) * 7 + (1,), flush="or last", scale="share", clip="norm", double=False, data_loader=True,
mutations={"GA201:late", "GA401"}

#: GA301, GA401: a remainder that is cleared by assignment when the next pass begins, and a clip too early
k=8, rows=(3,) * 20, epochs=2, boundary="K - 1", flush="after", scale="window", spelling="inverse", model="mlp",
optimizer="AdamW", clearing="none", clears_first=True, clip="value", seed=8, mutations={"GA301", "GA401"},
objective=Objective(warm_up=Number("20")), k_from="literal", eval_every=Number("10", "EVAL_EVERY")

#: GA301: a list of a loader that ends short, counted through by hand
k=2, rows=(2, 2, 2, 2, 1), boundary="while", scale="total", double=False, data_loader=True, mutations={"GA301"}

#: GA301, GA601: a schedule for the steps of passes that a while loop does not show
k=2, rows=(2,) * 5, epochs=2, boundary="while", scale="window", double=False, data_loader=True, schedule="steps",
mutations={"GA301", "GA601"}

#: GA301, GA302, GA801 (lint): losses that are kept over two steps only
k=2, rows=(1,) * 8, boundary="counter", double=False, mutations={"GA302", "GA801"}

## Remainders that are flushed
#: GA103 (lint), GA503: a remainder whose gradient has overflowed
k=2, rows=(1,) * 7, units=(3,) * 7, boundary="continue", flush="after", scale="window", model="attention",
loss="mse", amp="scaler", double=False, mutations={"GA103", "GA503"}

#: right: a list of a loader that ends short
k=2, rows=(2, 2, 2, 1), boundary="nested", scale="total", double=False, data_loader=True

#: GA104 (verify): a mean of means whose micro-batches have the same gradient
k=2, rows=(3,) * 4, units=(1, 2, 2, 2), boundary="nested", scale="share", model="tied", loss="ignored tokens",
double=False, seed=988, mutations={"GA104"}

## Clips and clearing
#: GA401: a value clip in every micro-batch, of an objective that makes the gradient small
k=7, rows=(4,) * 17, units=(12,) * 17, boundary="K - 1", flush="after", scale="window", spelling="method",
model="rnn", loss="smooth l1", optimizer="Adam", clearing="model", clip="value", double=False, data_loader=True,
seed=982, mutations={"GA401"}, objective=Objective(constant=Number("5"), temperature=Number("17")),
k_from="namespace"

#: GA201, GA402: the clearing was moved before a clip that was behind the step of a flush
k=2, rows=(1,) * 5, units=(3,) * 5, flush="after", scale="window", model="tied", loss="tokens", clip="value",
double=False, mutations={"GA201", "GA402"}

#: GA203: gradients that are never cleared, of which a clip by value leaves little and a grad scaler less
k=5, rows=(1,) * 13, units=(3,) * 13, boundary="while", flush="after", scale="window", spelling="function",
model="tied", loss="tokens", optimizer="RMSprop", clearing="zeros", clip="value", amp="scaler", double=False,
layout="function", seed=15, mutations={"GA203"}, objective=Objective(constant=Number("1.5", "weight"), after=True),
k_from="config"

#: GA203, GA601 (verify): the same of an objective that is multiplied by eight
k=9, rows=(4,) * 23, boundary="K - 1", flush="after", scale="gradients", spelling="statement", model="attention",
loss="functional", clearing="optimizer", clip="value", amp="scaler", double=False, schedule="decay", metrics=True,
seed=805, mutations={"GA601", "GA203"},
objective=Objective(constant=Number("8", "factor"), operation="*", after=True), k_from="accum",
eval_every=Number("10", "EVAL_EVERY")

#: right: gradients cleared by hand beside a call of zero_grad, at the last batch
k=2, rows=(1,) * 4, units=(3,) * 4, epochs=2, spelling="in place", model="mlp", loss="mse", optimizer="momentum",
clearing="none", pair=True, seed=140, k_from="namespace", rejects="batch", outliers=(3,)

#: right: gradients cleared by hand with the last batch of a window, which is left out for its loss
k=3, rows=(3,) * 6, units=(9,) * 6, scale="steps", spelling="method", model="linear", loss="mse", optimizer="AdamW",
clearing="none", seed=987, k_from="namespace", rejects="batch", outliers=(2,)

#: right: the same before a flush, with the number that remains in the denominator
k=3, rows=(2,) * 7, units=(6,) * 7, epochs=2, flush="or last", scale="window", spelling="inverse", model="mlp",
loss="smooth l1", optimizer="momentum", clearing="none", metrics=True, seed=128, k_from="config", rejects="batch",
outliers=(5,)

#: GA201, GA302: one window, and what runs between two clearings in it is none that was loaded and never ran
k=2, rows=(1,) * 3, boundary="counter", mutations={"GA201:late", "GA302"}

#: GA201, GA302: the same in several windows of a loader, whose last ends the pass
k=2, rows=(1,) * 6, boundary="counter", data_loader=True, mutations={"GA201:late", "GA302"}

## Steps that never run
#: right: a step that never runs, in the loop over the parts of a batch
k=5, rows=(2,) * 10, units=(6,) * 10, boundary="chunks", scale="gradients", spelling="inverse", model="rnn",
loss="smooth l1", optimizer="AdamW", clip="norm", layout="function",
disguise=("short names", "comments", "dead code"), seed=57,
objective=Objective(constant=Number("5", "TEMPERATURE"), terms=3, mean=Number("3", "n_losses")), k_from="namespace"

#: right: a window that is rejected, in a loop that defines a function which steps
k=6, rows=(3,) * 12, units=(9,) * 12, epochs=2, boundary="islice", scale="gradients", spelling="inverse",
model="attention", loss="smooth l1", clearing="model", metrics=True, disguise=("dead code",), seed=668,
k_from="namespace", rejects="window", outliers=(5,)
""")
"""Variants by their fields; each loss averages over the rows where no units are named."""


def variant_of(fields: str) -> Variant:
    """The variant of a row."""
    named = eval(f"dict({fields})", {"Number": Number, "Objective": Objective})
    return Variant(**{"units": named["rows"], **named, "mutations": frozenset(named.get("mutations", ()))})


@pytest.mark.parametrize("row", FOUND, ids=lambda row: row.name)
def test_the_engines_and_the_arithmetic_agree(row: LabelledLoop) -> None:
    comparison, problems = judged(variant_of(row.source), fixes=True)
    assert problems == ()
    assert comparison is not None and comparison.undecided == ()
    assert {d.mistake.code for d in comparison.result.diagnosis} == row.codes_of("verify")
    assert {code for _, code in comparison.found} == row.codes_of("lint")


@pytest.mark.parametrize("data_loader", [False, True])
@pytest.mark.parametrize("boundary", ["i + 1", "chunks"])
def test_the_tokens_are_those_that_the_script_draws(boundary: str, data_loader: bool) -> None:
    k = 2
    rows = (2, 2, 2, 2) if boundary == "chunks" else (3, 3, 3, 1)
    variant = Variant(
        k=k,
        rows=rows,
        units=tuple(3 * n for n in rows),
        boundary=boundary,
        model="tied",
        loss="tokens",
        data_loader=data_loader and boundary != "chunks",
        seed=5,
    )
    names: dict[str, object] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(render(variant), names)
    drawn = []
    for large_x, large_y in names["loader"]:  # type: ignore[attr-defined]
        for x, y in (
            zip(large_x.chunk(k), large_y.chunk(k), strict=True) if boundary == "chunks" else [(large_x, large_y)]
        ):
            drawn.append(Counter(zip(x.flatten().tolist(), y.flatten().tolist(), strict=True)))
    assert contents(variant) == drawn


def test_a_step_that_bypasses_the_scaler_may_have_no_gradient_to_show_it() -> None:
    # After a few steps with the scale inside nothing is left of the gradient: verify claims nothing of such a step.
    variant = variant_of("""\
k=2, rows=(1,) * 7, boundary="continue", flush="after", scale="gradients", spelling="function", model="attention",
optimizer="momentum", amp="scaler", double=False, layout="helpers", metrics=True, seed=692,
mutations={"GA503", "GA201"}
""")
    assert compare(variant).problems == ()


def test_what_leaks_or_is_dropped_is_no_remainder_that_was_flushed() -> None:
    planted = frozenset({"GA103", "GA301"})
    for epochs in (1, 2):
        variant = Variant(k=2, rows=(1,) * 5, units=(1,) * 5, epochs=epochs, scale="window", mutations=planted)
        assert truth(variant).verdict == "deviates"
        comparison = compare(variant)
        assert {d.mistake.code for d in comparison.result.diagnosis} == {"GA301"}
        assert {code for _, code in comparison.found} == {"GA301"}


@pytest.mark.parametrize("boundary", ["counter", "while"])
@pytest.mark.parametrize("count", [3, 5, 7])
def test_a_leak_over_passes_that_do_not_show_hides_no_double_division(count: int, boundary: str) -> None:
    planted = frozenset({"GA102", "GA301"})
    rows = (4,) * count
    variant = Variant(k=2, rows=rows, units=rows, epochs=2, boundary=boundary, scale="window", mutations=planted)
    comparison = compare(variant)
    assert comparison.problems == ()
    # With three, the shares of the window that the leak is in, 1/2 and twice 1/4, happen to add up to 1.
    assert {d.mistake.code for d in comparison.result.diagnosis} == planted
    assert {code for _, code in comparison.found} == planted


def test_the_length_of_a_window_makes_no_mean_of_two_terms() -> None:
    # raw = fit + spread; loss = raw / len(window) / K: the length of a list of losses would make their mean.
    variant = variant_of("""\
k=2, rows=(3,) * 4, boundary="nested", scale="window", loss="functional", layout="function", mutations={"GA102"},
objective=Objective(terms=2, constant=Number("6", "num_heads"), after=True), k_from="argument"
""")
    assert compare(variant).problems == ()


@pytest.mark.parametrize("operation", ["*", "/"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("constant", [Number("7", "num_heads"), Number("2", "num_heads")])
def test_no_constant_undoes_the_second_division_of_a_sum(constant: Number, after: bool, operation: str) -> None:
    # loss = num_heads * raw / units of the window / n_micro: to lint the divisor may count anything.
    variant = variant_of("""\
k=7, rows=(2, 3, 3, 1, 4, 1, 1, 4, 3), boundary="islice", scale="total", loss="cross entropy", clearing="model",
seed=74, mutations={"GA102"}, k_from="namespace"
""")
    comparison = compare(replace(variant, objective=Objective(constant=constant, operation=operation, after=after)))
    assert comparison.problems == ()
    assert comparison.result.verdict.value == "deviates"
    assert {d.mistake.code for d in comparison.result.diagnosis} == {"GA102"}


COUNTED_BY_A_LITERAL = Variant(
    k=4,
    rows=(4,) * 8,
    units=(4,) * 8,
    epochs=2,
    boundary="counter",
    flush="or last",
    spelling="function",
    mutations=frozenset({"GA302"}),
    k_from="literal",
)
"""``count > 4`` and ``scaled(raw, 4)``: windows of 5 and 3."""


@pytest.mark.parametrize("layout", ["script", "function", "helpers"])
@pytest.mark.parametrize(
    "objective",
    [
        Objective(),
        Objective(constant=Number(text="4", name="num_heads"), after=True),
        # As many terms as the last window of a pass has micro-batches.
        Objective(constant=Number(text="5"), operation="*", terms=3, mean=Number(text="3")),
    ],
)
def test_a_literal_that_a_call_passes_on_is_the_literal_that_the_source_counts_to(
    layout: str, objective: Objective
) -> None:
    comparison = compare(replace(COUNTED_BY_A_LITERAL, layout=layout, objective=objective))
    assert comparison.problems == ()
    assert {d.mistake.code for d in comparison.result.diagnosis} == {"GA302"}
    assert {code for _, code in comparison.found} == {"GA302"}


@pytest.mark.parametrize("mutations", [(), ("GA302",)])
def test_the_mean_of_as_many_terms_as_a_window_has_micro_batches_does_not_scale_it(mutations: tuple[str, ...]) -> None:
    # ``count > 2``: windows of three, three terms over 3, and scaled(raw, 2); rightly, ``count == 2``.
    wrong = bool(mutations)
    variant = replace(
        COUNTED_BY_A_LITERAL,
        k=2,
        rows=(2,) * 4,
        units=(2,) * 4,
        flush="",
        mutations=frozenset(mutations),
        objective=Objective(terms=3, mean=Number(text="3")),
    )
    comparison = compare(variant)
    assert comparison.problems == ()
    assert comparison.result.verdict.value == ("deviates" if wrong else "equivalent")
    assert ("GA302" in {d.mistake.code for d in comparison.result.diagnosis}) == wrong


def test_a_literal_that_a_call_passes_on_is_k_where_the_source_counts_to_it() -> None:
    variant = replace(COUNTED_BY_A_LITERAL, mutations=frozenset(), objective=Objective())
    comparison = compare(variant)
    assert comparison.problems == ()
    assert comparison.result.verdict.value == "equivalent"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_is_divided_by_the_length_of_its_window_is_not_divided_by_an_equal_literal_too(count: int) -> None:
    # Slices of three, the literal, and an objective over 3: a window of one is divided by its length, which is 1.
    variant = Variant(
        k=3,
        rows=(2,) * count,
        units=(6,) * count,
        boundary="nested",
        scale="window",
        spelling="in place",
        loss="mse",
        objective=Objective(constant=Number(text="3"), after=True),
        k_from="literal",
    )
    comparison = compare(variant)
    assert comparison.problems == ()
    assert comparison.result.verdict.value == "equivalent"
