"""What factors are read as, on hand-written traces that say where each number comes from.

Every expected weight is worked out by hand: a micro-batch of n units that is multiplied by c has the weight c N / n, N
being the units of its window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from traces import MODEL, at, backward, codes, loop, step, weights, zero

from gradcheck_accum.diagnosis import diagnose
from gradcheck_accum.ledger.events import (
    Backward,
    Event,
    Factor,
    Operation,
    Purpose,
    Reduction,
    ScaleGrads,
    Term,
    Trace,
    WindowBound,
)
from gradcheck_accum.ledger.folding import fold
from gradcheck_accum.ledger.ranks import joined
from gradcheck_accum.ledger.weights import Readings, read_weights

FLOAT32 = 2.0**-24
"""The precision of a run; a trace without one was read in a source."""


def by(divisor: float, *origins: str, line: int | None = None) -> Factor:
    """A division of the loss, and what the source has for its number."""
    where = None if line is None else at(line)
    return Factor(1 / divisor, Operation.DIVIDE, where=where, origins=frozenset(origins))


def times(value: float, *origins: str) -> Factor:
    return Factor(value, origins=frozenset(origins))


def term(*factors: Factor, units: float | None = 5, name: str = "loss", **kwargs: object) -> Term:
    return Term(name, kwargs.pop("reduction", Reduction.MEAN), units, factors, **kwargs)  # type: ignore[arg-type]


def windows(
    each: Sequence[Iterable[Sequence[Term]]], bound: WindowBound | None = None, **kwargs: object
) -> list[Event]:
    """Windows of micro-batches, each of which sends back these terms."""
    events: list[Event] = []
    batch = 0
    for window in each:
        for terms in window:
            own = Backward(where=at(10), micro_batch=batch, stores=MODEL, terms=tuple(terms), **kwargs)  # type: ignore[arg-type]
            events.append(own)
            batch += 1
        events += [step(counted_by=bound), zero()]
    return events


def read(events: Iterable[Event], **trace: object) -> Readings:
    return read_weights(fold(Trace(tuple(events), **trace)))  # type: ignore[arg-type]


def test_passes_are_told_apart_only_where_a_window_holds_more_than_k() -> None:
    """Passes of two in windows of four: what divides by 2 is no length of a window's part."""
    events = [e for i in range(8) for e in (backward(i, 2, epoch=i // 2), *((step(), zero()) if i % 4 == 3 else ()))]
    assert weights(events) == weights(loop([4, 4], 2)) == [[4.0] * 4] * 2


def test_a_leak_of_sums_over_their_own_windows_where_no_pass_is_known() -> None:
    """3 micro-batches are left over each time, divided by their own 15 units; they come with 4 that 20 divides."""
    events: list[Event] = []
    for window in range(2):
        counts = [15] * 3 + [20] * 4
        events += [backward(7 * window + i, n, units=5, reduction=Reduction.SUM) for i, n in enumerate(counts)]
        events += [step(accumulation_steps=4), zero()]
    assert weights(events) == [[pytest.approx(35 / 15, abs=1e-6)] * 3 + [35 / 20] * 4] * 2


def test_a_longer_window_is_no_leak_where_the_full_ones_say_what_divides() -> None:
    """A sum over 3 micro-batches of 5 units is divided by 15, and one over 5 of 7 units by the same constant."""

    def window(first: int, length: int, units: float) -> list[Event]:
        own = [backward(first + i, 15, units=units, reduction=Reduction.SUM) for i in range(length)]
        return [*own, step(), zero()]

    events = [*window(0, 3, 5), *window(3, 5, 7), *window(8, 3, 5)]
    assert weights(events) == [[1.0] * 3, [pytest.approx(35 / 15, abs=1e-6)] * 5, [1.0] * 3]


def test_two_losses_of_one_batch_from_two_lines_are_weighed_apart() -> None:
    events: list[Event] = []
    for i in range(6):
        events += [backward(i, 3, line=10), backward(i, line=12), *((step(), zero()) if i % 3 == 2 else ())]
    ledger = fold(Trace(tuple(events)))
    assert weights(events) == [[1.0, 3.0] * 3] * 2
    assert [(d.mistake.code, d.where.line) for d in diagnose(ledger)] == [("GA101", 12)]


@pytest.mark.parametrize("over", ["units", "rows"])
@pytest.mark.parametrize(("factor", "weight"), [(2.0, 1.0), (1.0, 0.5)])
def test_a_sum_over_what_all_ranks_hold(over: str, factor: float, weight: float) -> None:
    """Ranks of 5 and 7 units in 2 and 3 rows: the average over them divides by 2, be it undone or not."""
    held = {"units": 3 * (5 + 7), "rows": 3 * (2 + 3)}[over]

    def rank(units: float, rows: float) -> list[Event]:
        own = term(times(factor), by(held), units=units, rows=rows, reduction=Reduction.SUM)
        return windows([[[own]] * 3] * 2, synced=True, ranks=2)

    for own in joined([fold(Trace(tuple(rank(5, 2)))), fold(Trace(tuple(rank(7, 3))))]):
        found = [read_weights(own).relative_weights(window) for window in own.windows]
        assert found == [pytest.approx([weight] * 6)] * 2


HEADS = frozenset({"train.py:4", "HEADS"})
"""A constant of the source that has a name of its own."""


@pytest.mark.parametrize("heads", [3.0, 2.0])
@pytest.mark.parametrize(("k", "weight"), [([], 1.0), ([by(3, "K")], 1 / 3)])
def test_a_constant_undoes_no_division_of_a_sum_by_k(heads: float, k: list[Factor], weight: float) -> None:
    """3 micro-batches of 5 units, divided by 15: dividing by K as well is once too often, whatever HEADS is."""
    own = term(times(heads, *HEADS), by(15, "total"), *k, reduction=Reduction.SUM)
    ledger = fold(Trace(tuple(windows([[[own]] * 3] * 2))))
    readings = read_weights(ledger)
    assert [readings.relative_weights(window) for window in ledger.windows] == [(weight,) * 3] * 2


@pytest.mark.parametrize("k", [3, 2])
def test_the_number_of_ranks_undoes_their_average_and_not_k(k: int) -> None:
    """Each of 2 ranks divides by K, and by the 5 + 7 units of both in a micro-batch: the average is undone."""

    def rank(units: float) -> list[Event]:
        own = term(times(2, *HEADS), by(12, "total"), by(k, "K"), units=units, reduction=Reduction.SUM)
        return windows([[[own]] * k] * 2, synced=True, ranks=2)

    for own in joined([fold(Trace(tuple(rank(5)))), fold(Trace(tuple(rank(7))))]):
        found = [read_weights(own).relative_weights(window) for window in own.windows]
        assert found == [pytest.approx([1.0] * 2 * k)] * 2


@pytest.mark.parametrize(("back", "found"), [(4 / 3, []), (None, ["GA103"]), (4 / 2, ["GA103"])])
def test_what_makes_a_remainder_whole_after_windows_of_other_lengths_is_no_objective(
    back: float | None, found: list[str]
) -> None:
    """K grows to 4; the remainder of 3 is divided by 4, and multiplied by 4/3. A window of 3 before was not."""
    own = [] if back is None else [Factor(back, where=at(11))]
    each = [(2, 2, []), (3, 3, []), (4, 4, []), (4, 4, []), (3, 4, own)]
    events = windows([[[term(by(k, line=9), *more)]] * held for held, k, more in each])
    assert codes(events) == found


def test_a_division_in_either_branch_is_one_of_each() -> None:
    """By 3 in one branch, by 1.5 and then by 2 in the other; the objective's 0.7 follows both."""
    common = Factor(0.7, where=at(9))
    branches = [term(by(3, line=5), common), term(by(1.5, line=6), by(2, line=7), common)]
    events = windows([[[branches[i % 2]] for i in range(3)], [[branches[i % 2]] for i in range(1, 4)]])
    assert weights(events) == [[1.0] * 3] * 2
    assert codes(events) == []


def test_gradients_multiplied_for_the_objective_are_not_scaled_by_k() -> None:
    third = ScaleGrads(where=at(18), stores=MODEL, factor=Factor(1 / 3, Operation.DIVIDE, Purpose.OBJECTIVE))
    assert weights(loop([3, 3], closing=(third, step(), zero()))) == [[3.0] * 3] * 2


@pytest.mark.parametrize(("rescale", "weight"), [(1 / 3, 1.0), (2.0, 6.0), (1.0, 3.0)])
def test_what_an_average_multiplies_by_on_its_way(rescale: float, weight: float) -> None:
    events = windows([[[term()]] * 3] * 2, rescale=rescale)
    assert weights(events) == [[weight] * 3] * 2


def test_a_mean_times_its_units_over_those_of_the_window() -> None:
    counts = (5, 7, 3)
    events = windows([[[term(times(n), by(15), units=n)] for n in counts]] * 2)
    assert weights(events) == [[1.0] * 3] * 2
    assert codes(events) == []


def scaled_at(terms: Sequence[Term], bound: WindowBound | None = None) -> set[int]:
    """The lines of what is read as the accumulation's in windows of 4."""
    ledger = fold(Trace(tuple(windows([[terms] * 4] * 2, bound))))
    return {place.line for place in read_weights(ledger).scaled_at(ledger.windows)}


def test_of_two_factors_that_are_k_the_whole_losss_is_the_likelier() -> None:
    """A term is multiplied by 0.25 by itself, and then all of the loss."""
    own, whole = Factor(0.25, where=at(5)), Factor(0.25, where=at(9))
    assert scaled_at([term(own, whole, name="mse"), term(whole, name="ce")]) == {9}


def test_of_two_divisions_that_are_k_the_one_that_makes_a_mean_of_the_terms_is_the_objectives() -> None:
    of_terms, whole = by(4, "train.py:5", line=5), by(4, "train.py:9", line=9)
    terms = [term(of_terms, whole, name=name) for name in ("ce", "mse", "huber", "kl")]
    assert scaled_at(terms, WindowBound(4, frozenset({"train.py:2"}))) == {9}


def test_of_two_bare_numbers_that_are_k_the_divisor_is_the_likelier() -> None:
    share = Factor(0.25, where=at(5), origins=frozenset({"train.py:5"}))
    bound = WindowBound(4, frozenset({"train.py:2"}))
    assert scaled_at([term(share, by(4, "train.py:9", line=9))], bound) == {9}


@pytest.mark.parametrize(
    ("half", "bound", "weight"),
    [
        # Both have names of their own, and K has another: by numbers alone they come to it.
        (by(2, "cfg.heads"), WindowBound(6, frozenset({"cfg.accum"})), None),
        # One is a bare number.
        (by(2, "train.py:3"), WindowBound(6, frozenset({"cfg.accum"})), 1.0),
        # Nothing shows what K is called.
        (by(2, "cfg.heads"), None, 1.0),
    ],
)
def test_names_that_come_to_k_together(half: Factor, bound: WindowBound | None, weight: float | None) -> None:
    events = windows([[[term(half, by(3, "cfg.groups"))]] * 6] * 2, bound)
    assert weights(events) == [[weight] * 6] * 2
    said = "but come from elsewhere in the source" if weight is None else "and were read as loss scaling"
    assert any(said in note for note in read(events).notes)


@pytest.mark.parametrize(
    ("scaling", "weight", "found"),
    [
        # By the constant for a sum, the division is missing; by the division for K, nothing is.
        ([by(9, "parts", "train.py:14")], None, []),
        ([], 9.0, ["GA101"]),
    ],
)
def test_a_constant_makes_no_sum_where_the_loss_is_divided_by_what_equals_k(
    scaling: list[Factor], weight: float | None, found: list[str]
) -> None:
    constant = times(9.0, "SCALE", "train.py:3")
    events = windows([[[term(constant, *scaling, units=9)]] * 9] * 2, WindowBound(9, frozenset({"train.py:18"})))
    assert weights(events) == [[weight] * 9] * 2
    assert codes(events) == found


WORTH = (0.3, 0.9, 0.6)


@pytest.mark.parametrize(
    ("others", "weight"),
    [
        ([by(3, "accumulation_steps")], 1.0),
        ([], None),
        ([by(5)], None),
        ([times(0.7)], None),
    ],
)
def test_what_data_says_that_a_micro_batch_is_worth_stands_beside_a_division_by_k(
    others: list[Factor], weight: float | None
) -> None:
    events = windows([[[term(times(own, "data"), *others)] for own in WORTH]] * 2)
    assert weights(events) == [[weight] * 3] * 2
    assert codes(events) == []


@pytest.mark.parametrize(
    ("others", "dark"),
    [
        ([term()], False),
        ([term(by(3))], True),
        ([term(reduction=Reduction.SUM)], True),
        ([term(name="mse"), term(reduction=Reduction.SUM)], True),
        ([], True),
    ],
)
def test_a_penalty_may_hold_the_division_unless_the_rest_of_its_loss_shows_none(others: list[Term], dark: bool) -> None:
    penalty = term(times(0.01), units=None, name="penalty", reduction=Reduction.NONE)
    readings = read(windows([[[*others, penalty]] * 3] * 2), precision=FLOAT32)
    said = "the factor of penalty may be the division by K or part of the objective"
    assert any(said in note for note in readings.notes) == dark


@pytest.mark.parametrize(
    ("again", "found"),
    [
        # The sum is divided by the units of its window: what the penalty is divided by is unknown.
        ([], []),
        # Divided by K again, the sum itself is wrong.
        ([by(3, "accumulation_steps", line=8)], ["GA102"]),
    ],
)
def test_what_counts_the_units_of_one_term_says_nothing_of_a_penalty(again: list[Factor], found: list[str]) -> None:
    def micro_batch(held: int) -> list[Term]:
        mean = [*again, by(7 * held, line=9)]
        penalty = term(times(0.01), *mean, units=None, name="penalty", reduction=Reduction.NONE)
        return [term(*mean, units=7, reduction=Reduction.SUM), penalty]

    events = windows([[micro_batch(held)] * held for held in (3, 3, 2)])
    assert codes(events) == found


@pytest.mark.parametrize(("names", "dark"), [(("mse", "mse #2", "mse #3"), True), (("mse", "ce", "huber"), False)])
def test_a_mean_of_as_many_losses_as_k_is_open_where_they_are_of_one_kind(names: Sequence[str], dark: bool) -> None:
    terms = [term(by(3), name=name) for name in names]
    readings = read(windows([[terms] * 3] * 2), precision=FLOAT32)
    assert any("the factor of mse may be the division by K" in note for note in readings.notes) == dark


def counted(*windows: tuple[Sequence[int], int]) -> list[Event]:
    """Windows of these micro-batches, each with what the source's own counter has come to at its step."""
    events: list[Event] = []
    for batches, reached in windows:
        events += [backward(i, 3, units=5) for i in batches]
        events += [step(counted_by=WindowBound(3, reached=reached, first=1)), zero()]
    return events


def test_a_micro_batch_that_the_counter_has_counted_and_that_never_ran() -> None:
    events = counted(((0, 1, 2), 3), ((3, 4), 6), ((5, 6, 7), 9))
    ledger = fold(Trace(tuple(events)))
    assert [ledger.skipped(window) for window in ledger.windows] == [0, 1, 0]
    assert codes(events) == ["GA303"]
    assert codes(counted(((0, 1, 2), 3), ((3, 4, 5), 6), ((6, 7, 8), 9))) == []


def test_a_batch_that_a_loader_gave_and_that_never_ran() -> None:
    """The loader says so itself: what the source's counter has come to is not asked."""
    events = counted(((0, 1, 2), 3), ((3, 4), 5), ((5, 6, 7), 8))
    given = {0: 1, 1: 2, 2: 3, 3: 4, 4: 6, 5: 7, 6: 8, 7: 9}
    events = [replace(e, epoch=0, given=given[e.micro_batch]) if isinstance(e, Backward) else e for e in events]
    ledger = fold(Trace(tuple(events)))
    assert [ledger.skipped(window) for window in ledger.windows] == [0, 1, 0]
    assert codes(events) == ["GA303"]


PLAIN = {
    "by 3": ([[[term(by(3))]]] * 6, True),
    "by a 3 with a name": ([[[term(by(3, "SCALE"))]]] * 6, True),
    "by 2, as many objectives are": ([[[term(by(2))]]] * 6, False),
    "by 1": ([[[term(by(1))]]] * 6, False),
    "by no whole number": ([[[term(by(1.5))]]] * 6, False),
    "by 3 for the objective, as the source says": (
        [[[term(Factor(1 / 3, Operation.DIVIDE, Purpose.OBJECTIVE))]]] * 6,
        False,
    ),
    "by the number of its terms": ([[[term(by(3), name=name) for name in "abc"]]] * 6, False),
    "by what changes": ([[[term(by(3 + i % 2))]] for i in range(6)], False),
    "a multiplication": ([[[term(times(1 / 3))]]] * 6, False),
    "a single step": ([[[term(by(3))]]], False),
    "windows of three": ([[[term(by(3))]] * 3] * 3, False),
}


@pytest.mark.parametrize(("each", "noted"), PLAIN.values(), ids=PLAIN)
def test_a_division_in_plain_training_may_be_a_k_that_nothing_else_shows(
    each: list[list[list[Term]]], noted: bool
) -> None:
    notes = read(windows(each), precision=FLOAT32).notes
    assert any("by 3 was read as part of the objective" in note and "GA304" in note for note in notes) == noted
    assert bool(notes) == noted


@pytest.mark.parametrize(("length", "found"), [(2, []), (3, ["GA302"])])
def test_factors_that_come_to_one_over_a_stated_k_scale_windows_that_are_all_shorter(
    length: int, found: list[str]
) -> None:
    events: list[Event] = []
    for window in range(3):
        events += [
            Backward(where=at(10), micro_batch=length * window + i, stores=MODEL, terms=(term(times(3), by(12)),))
            for i in range(length)
        ] + [step(accumulation_steps=4), zero()]
    assert weights(events) == [[length / 4] * length] * 3
    assert codes(events) == found


def test_a_literal_and_a_divisor_without_a_source_that_come_to_one_over_k() -> None:
    """2/4 in windows of two. Only what is measured of a batch, as its size, is not undone by a constant."""
    own = term(by(4), times(2, "train.py:9:2"))
    readings = read(windows([[[own]] * 2] * 2))
    assert [n for n in readings.notes if "0.25, 2 of loss multiply to 1/K" in n] == readings.notes != []
    events = windows([[[own]] * 2] * 2)
    assert (weights(events), codes(events)) == ([[1.0] * 2] * 2, [])


@pytest.mark.parametrize(
    ("divisor", "weight", "found"),
    [(by(4, "cfg.scale", "train.py:3:1"), 3.0, ["GA101"]), (by(4, "train.py:9:2"), 0.75, ["GA302"])],
    ids=["of another name", "of the name that is counted to"],
)
def test_a_number_next_to_k_is_k_off_by_one_only_if_it_has_its_name(
    divisor: Factor, weight: float, found: list[str]
) -> None:
    """4 in windows of three: a coefficient (3 times too much), or what was to be K (3/4)."""
    bound = WindowBound(3, origins=frozenset({"train.py:9:2"}))
    events = windows([[[term(divisor)]] * 3] * 3, bound)
    assert (weights(events), codes(events)) == ([[weight] * 3] * 3, found)


def test_a_window_of_changing_factors_leaves_those_known_that_are_right_without_it() -> None:
    """By 2, 3 and 4 in the first window, for no known reason; then by 3, in a remainder of one as well: a third."""
    each = [[by(2)], [by(3)], [by(4)]], [[by(3)]] * 3, [[by(3)]] * 3, [[by(3)]]
    events = windows([[[term(*factors)] for factors in window] for window in each])
    assert weights(events) == [[None] * 3, [1.0] * 3, [1.0] * 3, [pytest.approx(1 / 3, abs=1e-6)]]
    assert codes(events) == ["GA103"]


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_windows_units_that_are_as_many_as_the_rows_of_each_batch_are_the_windows(factor: float) -> None:
    """1 + 2 + 2 units of 3 batches of 5 rows each: a sum over 5 is the window's mean, whatever its coefficient."""
    own = [[term(times(factor), by(5), units=units, rows=5, reduction=Reduction.SUM)] for units in (1, 2, 2)]
    events = windows([own] * 3)
    assert (weights(events), codes(events)) == ([[1.0] * 3] * 3, [])


@pytest.mark.parametrize(("names", "weight"), [(("mse", "ce"), 2.0), (("mse", "mse"), 4.0)], ids=["sum", "mean"])
def test_a_name_of_k_makes_the_mean_of_two_terms_only_where_they_are_of_one_kind(
    names: Sequence[str], weight: float
) -> None:
    """Windows of four, and a 2 that is named as K is: it is K (twice too much), or the mean of two losses alike."""
    terms = [term(by(2, "accumulation_steps"), name=name) for name in names]
    events = windows([[terms] * 4] * 3)
    assert (weights(events), codes(events)) == ([[weight] * 4] * 3, ["GA101"])


def test_all_full_windows_have_to_be_right_and_not_only_the_first() -> None:
    """By a K in the first window, times a third in those after it: together 1/3 in each, and in a remainder of one."""
    first = [term(by(3, "accumulation_steps"), times(1))]
    others = [term(times(1), times(1 / 3))]
    events = windows([[first] * 3, [others] * 3, [others]])
    assert weights(events) == [[1.0] * 3, [1.0] * 3, [pytest.approx(1 / 3, abs=1e-6)]]
    assert codes(events) == ["GA103"]


@pytest.mark.parametrize(("last", "weight"), [(2, 1.0), (3, None)])
def test_what_divides_by_the_windows_length_is_no_mean_of_as_many_terms(last: int, weight: float | None) -> None:
    """Three losses of one kind over 3, in windows of three; over 2 in a remainder of two, that is no mean of them."""
    each = [[[term(by(length))] * 3] * length for length in (3, 3, last)]
    assert weights(windows(each), precision=FLOAT32) == [[weight] * 3, [weight] * 3, [weight] * last]


def test_a_number_that_equals_k_under_another_name_stays_open_where_a_remainder_is_wrong_by_it() -> None:
    """With it full windows are right, and without it none is; the remainder of two is evidence of neither."""
    divided = [term(by(3, "cfg.scale", "train.py:3:1"))]
    events = windows([[divided] * length for length in (3, 3, 2)], WindowBound(3, origins=frozenset({"args.k"})))
    assert weights(events) == [[None] * 3, [None] * 3, [None] * 2]
    (note,) = read(events).notes
    assert "state --loss-coefficient 1; if it belongs to the objective, state --loss-coefficient 0.333333" in note
