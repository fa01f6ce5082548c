"""What a diagnosis asks for, just inside and just outside, on hand-written traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from traces import MODEL, at, backward, codes, loop, step, weights, zero

from gradcheck_accum.diagnosis import diagnose
from gradcheck_accum.ledger.events import (
    Backward,
    Clip,
    Event,
    GraphsHeld,
    LossShown,
    Opaque,
    Reason,
    Reduction,
    ScalerUpdate,
    SchedulerStep,
    ShownLoss,
    Trace,
    Unscale,
)
from gradcheck_accum.ledger.folding import fold
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.ranks import averages, joined
from gradcheck_accum.ledger.weights import read_weights


def reported(events: Sequence[Event]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(d.mistake.code, str(d.message), d.windows) for d in diagnose(fold(Trace(tuple(events))))]


def windows(lengths: Sequence[int], divisor: float, epochs: Sequence[int] = ()) -> list[Event]:
    """Windows of these lengths, their losses divided by one number; ``epochs`` are the lengths of the passes."""
    of = [epoch for epoch, length in enumerate(epochs) for _ in range(length)]
    events: list[Event] = []
    batch = 0
    for length in lengths:
        for _ in range(length):
            events.append(backward(batch, divisor, units=5, epoch=of[batch] if of else None))
            batch += 1
        events += [step(), zero()]
    return events


# Remainders


def test_whoever_clears_every_micro_batch_is_not_told_of_the_remainder_too() -> None:
    cleared = loop([3, 3], 3, before=(zero(9),), closing=(step(),))
    assert codes([*cleared, zero(9), backward(6, 3), zero(9), backward(7, 3)]) == ["GA201"]


def test_a_remainder_leaks_into_one_window_and_none_is_lost() -> None:
    """Passes of 5 and of 4: the second window of K = 3 holds 2 + 3, and the last 1 is lost in the one case alone."""
    leak = [found for found in reported(windows([3, 5], 3, epochs=[5, 3])) if found[0] == "GA301"]
    assert [found[2] for found in leak] == [(1,)]
    assert "leak into the next epoch's first window, which then holds 5" in leak[0][1]


def test_a_remainder_that_leaks_where_no_pass_is_known() -> None:
    """Two windows of 3 say how long one is, and two micro-batches that are left that passes leave some."""
    events = [*windows([3, 5, 3], 3), backward(11, 3, units=5), backward(12, 3, units=5)]
    assert [found[2] for found in reported(events) if found[0] == "GA301"] == [(1,)]


@pytest.mark.parametrize(
    ("lengths", "divisors", "expected"),
    [
        # Full windows have the weight 1, the remainder 2/3 of it.
        ((3, 3, 2), (3, 3, 3), ["GA103"]),
        # It is divided by its own length.
        ((3, 3, 2), (3, 3, 2), []),
        # Its weight is neither what K gives it nor 1.
        ((3, 3, 2), (3, 3, 5), []),
    ],
)
def test_a_remainder_is_misscaled_by_k_alone(
    lengths: Sequence[int], divisors: Sequence[int], expected: list[str]
) -> None:
    events: list[Event] = []
    batch = 0
    for length, divisor in zip(lengths, divisors, strict=True):
        events += [backward(batch + i, divisor, units=5, epoch=0) for i in range(length)] + [step(), zero()]
        batch += length
    assert [code for code in codes(events) if code == "GA103"] == expected


@pytest.mark.parametrize(
    ("divisors", "found"),
    [
        ((5, 3, 3), [("GA103", "the last window holds 3 micro-batches, but 1 of them is still divided by 5")]),
        ((5, 5, 3), [("GA103", "the last window holds 3 micro-batches, but 2 of them are still divided by 5")]),
        ((3, 3, 3), []),
        ((5, 5, 5), [("GA103", "the last window holds 3 micro-batches, but the loss is still divided by 5")]),
        # Neither number explains 4.
        ((5, 4, 3), []),
    ],
)
def test_a_remainder_of_which_only_some_are_scaled_by_its_length(
    divisors: Sequence[float], found: list[tuple[str, str]]
) -> None:
    tail = [backward(10 + i, divisor, units=5, epoch=0) for i, divisor in enumerate(divisors)]
    events = [*windows([5, 5], 5, epochs=[10]), *tail, step(), zero()]
    assert [(code, text.partition(":")[0]) for code, text, _ in reported(events)] == found


def passes_of(lengths: Sequence[int], k: int) -> list[Event]:
    """Passes over the data, each a window of its own that is divided by K, which is stated."""
    events: list[Event] = []
    for epoch, length in enumerate(lengths):
        events += [backward(10 * epoch + i, k, units=6, epoch=epoch) for i in range(length)]
        events += [step(accumulation_steps=k), zero()]
    return events


def test_passes_that_are_all_shorter_than_a_stated_k_hold_remainders_alone() -> None:
    short = passes_of([4, 4, 4], 5)
    ((code, said, _),) = reported(short)
    assert (code, "holds 4 micro-batches, but the loss is still divided by 5" in said) == ("GA103", True)
    assert codes(passes_of([4, 5, 5], 5)) == ["GA302"]
    lost = [backward(40 + i, 5, units=6, epoch=3 + i) for i in range(2)]
    unknown = Opaque(where=at(30), stores=MODEL, reason=Reason("a call of helper, which is defined elsewhere"))
    # The length of what could not be followed is unknown, whatever else was left over.
    assert "GA103" not in codes([*short, lost[0], unknown, zero(31), lost[1], zero(31)])


def test_a_stated_k_leaves_no_doubt_what_a_division_by_another_number_is_for() -> None:
    """Windows of 3 whose losses are divided by 12, which may be a K that never shows, unless K is stated."""

    def said(*stated: int | None) -> str:
        events: list[Event] = []
        for window, k in enumerate(stated):
            events += [*(backward(3 * window + i, 12) for i in range(3)), step(accumulation_steps=k), zero()]
        ((code, message, _),) = reported(events)
        assert code == "GA101"
        return message

    assert "3x relative to the large batch, or 0.25x if the division by 12 is not part of" in said(None, None)
    assert "division by 12" not in said(3, 3)
    assert "division by 12" not in said(None, 3)  # what the last of the steps states holds for all


def test_a_step_before_the_first_backward_opens_no_short_window() -> None:
    assert codes([step(), zero(), *loop([3, 3, 1], 3)]) == codes(loop([3, 3, 1], 3)) == ["GA103"]


# Means of unequal numbers of units


def of_ranks(*units: Sequence[float], divisor: float) -> list[list[tuple[str, str]]]:
    """What each rank records of two windows, of which each rank's micro-batches hold these units."""
    ledgers = []
    for own in units:
        events: list[Event] = []
        for window in range(2):
            for place, count in enumerate(own):
                batch, is_last = window * len(own) + place, place + 1 == len(own)
                events.append(replace(backward(batch, divisor, units=count, synced=is_last), ranks=len(units)))
            events += [step(), zero()]
        ledgers.append(fold(Trace(tuple(events))))
    return [[(d.mistake.code, str(d.message)) for d in diagnose(ledger)] for ledger in joined(ledgers)]


def test_ranks_whose_micro_batches_are_alike_hold_unequal_numbers_of_units() -> None:
    """15 and 27 units, and half of the gradient from each: a unit has 42 / 30 and 42 / 54 of its weight."""
    for own, told in zip(("15, 27", "27, 15"), of_ranks([5, 5, 5], [9, 9, 9], divisor=3), strict=True):
        ((code, said),) = told
        assert code == "GA104"
        assert said.startswith(f"mean of means: 2 ranks hold {own} units of this window")
        assert "per-unit weights range from 0.7778x to 1.4x" in said
    assert of_ranks([5, 5, 5], [5, 5, 5], divisor=3) == [[], []]


def test_ranks_whose_micro_batches_differ_among_themselves_are_told_of_those() -> None:
    """19 units each: what is uneven is within the ranks."""
    for told in of_ranks([5, 9, 5], [9, 5, 5], divisor=3):
        assert [(code, "the micro-batches of this window hold" in said) for code, said in told] == [("GA104", True)]
    even, uneven = of_ranks([6, 6], [5, 7], divisor=2)
    assert (even, [code for code, _ in uneven]) == ([], ["GA104"])


def test_a_micro_batch_that_is_left_out_by_a_factor_of_0_takes_no_mean_of_means() -> None:
    events: list[Event] = []
    for batch in range(9):
        events.append(backward(batch, 3, units=6, multiply=(0.0,) if batch == 4 else ()))
        events += [step(), zero()] if batch % 3 == 2 else []
    assert codes(events) == []


@pytest.mark.parametrize("units", [(4, 6, 8), (8, 6, 4)])
def test_a_micro_batch_that_weighs_nothing_is_left_out_of_what_is_uneven(units: Sequence[float]) -> None:
    """Each is weighted by its share of the 18 units of the window, except one in each, whose weight is 0."""

    def events(weighing: Callable[[float], float]) -> Iterator[Event]:
        for batch in range(9):
            count = units[batch % 3]
            yield backward(batch, units=count, multiply=(0.0 if batch % 3 == 2 else weighing(count),))
            yield from (step(), zero()) if batch % 3 == 2 else ()

    assert codes(events(lambda count: count / 18)) == []
    assert "GA104" in codes(events(lambda count: 1 / 3))


@pytest.mark.parametrize(
    ("units", "left_out", "held"),
    [
        ([5, 9], [0], ["5, 18", "18, 5"]),
        ([4, 5, 9], [0, 1], ["0, 10, 18", "10, 0, 18", "18, 0, 10"]),
    ],
)
def test_what_weighs_nothing_adds_no_units_to_those_of_its_rank(
    units: list[float], left_out: list[int], held: list[str]
) -> None:
    """Two micro-batches of as many units on each rank, of which the first rank's, or one of them, have the weight 0."""
    ledgers = []
    for rank, count in enumerate(units):
        events: list[Event] = []
        for batch in range(4):
            last = batch % 2 == 1
            factors = (0.0,) if rank == 0 and batch % 2 in left_out else ()
            one = backward(batch, 2, units=count, synced=last, multiply=factors)
            events += [replace(one, ranks=len(units)), *([step(), zero()] if last else [])]
        ledgers.append(fold(Trace(tuple(events))))
    told = [[str(d.message) for d in diagnose(ledger) if d.mistake.code == "GA104"] for ledger in joined(ledgers)]
    for own, each in zip(held, told, strict=True):
        (said,) = each
        assert f"{len(units)} ranks hold {own} units" in said


@pytest.mark.parametrize("units", [(6, 6, 6), (5, None, 9)])
def test_uneven_weights_are_no_mean_of_means_where_units_are_alike_or_unknown(units: Sequence[float | None]) -> None:
    events: list[Event] = []
    for batch in range(9):
        last = batch % 3 == 2
        events.append(backward(batch, *(() if last else (3,)), units=units[batch % 3]))
        events += [step(), zero()] if last else []
    assert "GA104" not in codes(events)


@pytest.mark.parametrize(("ranks", "ends"), [(8, "7, 9"), (9, "7, 9, …")])
def test_the_units_of_eight_ranks_are_spelled_out(ranks: int, ends: str) -> None:
    units = [5, 9, 5, 9, 5, 9, 7, 9, 5][:ranks]
    ((_, said),) = of_ranks(*([count] for count in units), divisor=1)[0]
    assert f"{ranks} ranks hold 5, 9, 5, 9, 5, 9, {ends} units" in said


def test_a_rank_without_any_units_takes_its_share_from_the_other() -> None:
    """Half of the gradient comes from the mean of nothing, so that the other rank's units have half the weight."""
    for own, told in zip(("0, 2", "2, 0"), of_ranks([0, 0], [1, 1], divisor=2), strict=True):
        assert [(code, f"2 ranks hold {own} units" in said) for code, said in told] == [("GA104", True)]


def test_a_micro_batch_without_any_units_takes_its_share_from_those_of_its_rank() -> None:
    for told in of_ranks([5, 0, 5], [5, 0, 5], divisor=2):
        assert ("GA104", True) in [(code, "hold 5, 0, 5, 5, 0, 5 units" in said) for code, said in told]


@pytest.mark.parametrize("units", [(1, 0, 1), (0, 1, 1)])
def test_a_micro_batch_without_any_units_takes_its_share_from_single_ones(units: Sequence[float]) -> None:
    events: list[Event] = []
    for window in range(2):
        events += [backward(3 * window + i, 3, units=count) for i, count in enumerate(units)] + [step(), zero()]
    ((code, said, _),) = reported(events)
    assert code == "GA104"
    assert f"hold {', '.join(map(str, units))} units" in said
    assert "from 0.6667x to 0.6667x" in said


@pytest.mark.parametrize(("length", "ends"), [(8, "9"), (9, "…")])
def test_eight_counts_of_units_are_spelled_out(length: int, ends: str) -> None:
    counts = [5, 9, 5, 9, 5, 9, 5, 9, 5][:length]
    events: list[Event] = []
    for window in range(2):
        events += [backward(length * window + i, length, units=count) for i, count in enumerate(counts)]
        events += [step(), zero()]
    ((_, said, _),) = reported(events)
    assert f"hold 5, 9, 5, 9, 5, 9, 5, {'9, …' if ends == '…' else '9'} units" in said


# Gradients of another's loss


def test_why_gradients_of_another_loss_are_not_meant_for_the_step() -> None:
    """A discriminator's own loss, and a generator's, of which the discriminator's loss is detached or is not."""
    d, g = frozenset({"D"}), frozenset({"G"})

    def said(cut_off: frozenset[str]) -> str:
        events: list[Event] = []
        for i in range(4):
            events += [backward(i, line=10, stores=d), step(11, "opt_d", d), zero(12, d)]
            through = backward(i, line=13, stores=d | g)
            events += [through, step(14, "opt_g", g), zero(15, g)]
        (found,) = [found for found in reported(events) if found[0] == "GA204"]
        return found[1]

    assert "another optimizer's step has used them" in said(frozenset())


def test_gradients_that_were_cleared_once_are_not_never_cleared() -> None:
    """Both are cleared after the first step, and one of them never again."""
    a, b = frozenset({"a"}), frozenset({"b"})
    events: list[Event] = []
    for window in range(3):
        events += [backward(3 * window + i, 3, units=5, stores=a | b) for i in range(3)]
        events += [step(20, "opt_a", a), step(21, "opt_b", b), zero(22, b), *([zero(23, a)] if window == 0 else [])]
    assert codes(events) == ["GA203"]


@pytest.mark.parametrize(("epochs", "expected"), [((1, 2), []), ((1, 1), ["GA202"]), ((1, None), ["GA202"])])
def test_what_was_cleared_is_an_earlier_passes_remainder_only_if_the_passes_are_known(
    epochs: tuple[int, int | None], expected: list[str]
) -> None:
    """K is 2 in the first pass and 4 from then on, and the last 2 micro-batches of the second pass are cleared."""
    first, second = epochs
    events = list(loop([2] * 5, 2, epoch=0, closing=(step(accumulation_steps=2), zero())))
    events += [*(backward(10 + i, 4, epoch=first) for i in range(4)), step(), zero()]
    events += [*(backward(14 + i, 4, epoch=first) for i in range(2)), zero(9)]
    for window in range(2):
        events += [*(backward(16 + 4 * window + i, 4, epoch=second) for i in range(4)), step(), zero()]
    assert [code for code in codes(events) if code.startswith("GA2")] == expected


# Once per micro-batch


@pytest.mark.parametrize(("horizon", "expected"), [(2, ["GA601"]), (4, ["GA601"]), (5, []), (1, [])])
def test_a_schedule_is_made_for_the_steps_give_or_take_one_for_each_pass(horizon: int, expected: list[str]) -> None:
    move = SchedulerStep(where=at(30), horizon=horizon)
    assert codes(loop([4, 4, 4], 4, after=(move,))) == expected


def test_a_schedule_that_moves_with_half_of_the_windows_keeps_no_pace() -> None:
    """With each micro-batch of two of four windows, and once with each of the others: not most of them."""
    move = SchedulerStep(where=at(30))
    busy, calm = loop([3, 3], 3, after=(move,)), loop([3, 3], 3, closing=(step(), zero(), move))
    assert codes([*busy, *calm]) == []


@pytest.mark.parametrize(("k", "horizon"), [(2, 12), (3, 9)])
def test_a_schedule_as_long_as_the_micro_batches_that_moves_with_the_steps(k: int, horizon: int) -> None:
    move = SchedulerStep(where=at(30), horizon=horizon)
    assert codes(loop([k] * (horizon // k), k, closing=(step(), zero(), move))) == ["GA603"]


# The grad scaler


def test_a_step_past_the_scaler_is_one_on_losses_that_were_all_scaled() -> None:
    own = [backward(i, 3, units=5, scaled=i != 1) for i in range(6)]
    assert codes([*own[:3], step(), zero(), *own[3:], step(), zero()]) == ["GA503"]
    assert codes([*own[:3], step(), zero()]) == []


def test_a_scale_that_is_divided_out_twice_before_the_next_update() -> None:
    unscale, update = Unscale(where=at(18), stores=MODEL), ScalerUpdate(where=at(22))
    through = step(through_scaler=True)
    again = Unscale(where=at(19), stores=MODEL)
    right = loop([3, 3], 3, scaled=True, closing=(unscale, through, zero(), update))
    twice = loop([3, 3], 3, scaled=True, closing=(unscale, again, through, zero(), update))
    assert codes(right) == []
    ((code, said, _),) = reported(list(twice))
    assert (code, "a second time since the last scaler.update()" in said) == ("GA502", True)


# Clips


def test_a_clip_of_gradients_that_wait_for_an_average_finds_none() -> None:
    """fully_shard keeps those of two micro-batches outside .grad until the third averages."""
    clip = Clip(where=at(19), stores=MODEL)
    own = [replace(backward(i, 3, units=5, synced=i == 2), kept_apart=True) for i in range(3)]
    ((code, said, _),) = reported([own[0], clip, own[1], own[2], step(), zero()])
    assert (code, "waiting to be averaged over the ranks" in said) == ("GA402", True)
    assert codes([*own, clip, step(), zero()]) == []
    ((code, said, _),) = reported([*own, step(), zero(), clip])
    assert (code, "just been cleared or used" in said) == ("GA402", True)


# Graphs, and losses that are shown


@pytest.mark.parametrize(("steps", "expected"), [(2, []), (3, ["GA801"])])
def test_a_place_that_keeps_all_but_the_last_windows_losses_takes_three_steps_to_tell(
    steps: int, expected: list[str]
) -> None:
    events: list[Event] = []
    for turn in range(steps):
        events += [backward(4 * turn + i, 4, epoch=0) for i in range(4)]
        events += [GraphsHeld(where=at(15), count=4 * turn, read=True), step(), zero()]
    assert codes(events) == expected


def test_a_half_of_the_mean_loss_is_shown() -> None:
    shown = LossShown(where=at(40), shown_at=at(41), backward=at(10), losses=(ShownLoss(1 / 6),) * 6)
    ((code, said, _),) = reported([*loop([2, 2, 2], 2), shown])
    assert (code, said.endswith("it is 1/2 of the mean loss")) == ("GA802", True)
    assert codes([*loop([1] * 6), shown]) == []


def test_gradients_that_nobody_clears_say_nothing_of_the_losses_that_are_shown() -> None:
    shown = LossShown(where=at(40), shown_at=at(41), backward=at(10), losses=(ShownLoss(1 / 12),) * 12)
    assert codes([*loop([4, 4, 4], 4, closing=(step(),)), shown]) == ["GA203", "GA802"]


# Sums


def test_a_sum_over_what_a_mask_leaves_of_the_window() -> None:
    """Windows of 15 units of which 11 and 13 count: each is divided by its own."""
    events: list[Event] = []
    for window, count in enumerate((11, 13)):
        events += [backward(3 * window + i, count, units=5, reduction=Reduction.SUM) for i in range(3)]
        events += [step(), zero()]
    assert weights(events) == [[1.0] * 3] * 2
    assert codes(events) == []
    (note,) = read_weights(fold(Trace(tuple(events)))).notes
    assert "summed over windows of 15, 15 units and divided by 11, 13" in note


def test_a_mean_over_what_a_mask_leaves_of_the_window_is_not_divided_by_k_too() -> None:
    """11 of a window's 15 units count, in each of them."""
    assert codes(loop([3, 3], 11, units=5, reduction=Reduction.SUM)) == []
    twice = list(loop([3, 3], 11, 3, units=5, reduction=Reduction.SUM))
    assert weights(twice) == [[pytest.approx(1 / 3, abs=1e-6)] * 3] * 2
    assert codes(twice) == ["GA102"]


def test_a_sum_over_what_a_mask_leaves_of_each_micro_batch_is_a_mean() -> None:
    """3, 4 and 5 of 5 units count, and K = 3 divides once more: a mean of means over 12 units."""
    events: list[Event] = []
    for window in range(2):
        events += [backward(3 * window + i, n, 3, units=5, reduction=Reduction.SUM) for i, n in enumerate((3, 4, 5))]
        events += [step(), zero()]
    assert weights(events) == [[pytest.approx(4 / 3, abs=1e-6), 1.0, 0.8]] * 2
    assert codes(events) == ["GA104"]


def test_a_backward_of_which_nothing_else_is_stated_is_of_one_rank_and_leaves_its_gradients_in_grad() -> None:
    own = Backward(where=at(10), micro_batch=0, stores=MODEL, terms=(), synced=False)
    assert not own.waits
    assert not averages(Trace((own,)))


def in_passes(*passes: Sequence[int]) -> list[Event]:
    """Windows of these lengths in passes, of losses that are divided by 4."""
    events: list[Event] = []
    batches = iter(range(100))
    for epoch, lengths in enumerate(passes):
        for length in lengths:
            events += [backward(next(batches), 4, epoch=epoch) for _ in range(length)] + [step(), zero()]
    return events


def found_in(events: Sequence[Event], **trace: object) -> list[tuple[str, tuple[int, ...]]]:
    """The codes, each with the windows that show it."""
    diagnosis = diagnose(fold(Trace(tuple(events), **trace)))  # type: ignore[arg-type]
    return sorted((d.mistake.code, tuple(d.windows)) for d in diagnosis)


def test_a_short_window_before_a_full_one_at_the_end_of_a_run_was_no_remainder() -> None:
    events = [*loop([4, 3, 4, 4], 4)]
    assert found_in(events) == [("GA303", (1,))]
    # Where a run was stopped, the full window is not known to be its last.
    assert found_in(events, complete=False) == [("GA103", (1,))]


def test_the_first_window_of_a_run_completes_no_earlier_remainder() -> None:
    assert found_in(in_passes([3, 2, 4, 4, 4], [4, 4, 4])) == [("GA303", (0, 1))]


def test_a_boundary_that_is_off_by_one_leaves_remainders_too() -> None:
    assert found_in(in_passes([3, 4, 4, 1], [3, 4, 4, 1])) == [("GA103", (3, 7)), ("GA302", (0,))]
    assert found_in(in_passes([3, 4, 4, 4], [3, 4, 4, 4])) == [("GA302", (0,))]


def test_windows_of_one_micro_batch_are_no_windows_from_the_second_on() -> None:
    assert found_in(in_passes([4, 4, 1, 1, 1])) == [("GA304", (2, 3, 4))]
    assert found_in(in_passes([4, 4, 1])) == [("GA103", (2,))]


@pytest.mark.parametrize(("skips", "states_steps"), [(None, True), (at(5), False)])
def test_a_skipped_micro_batch_needs_no_k_where_the_place_that_skips_is_known(
    skips: Location | None, states_steps: bool
) -> None:
    (found,) = diagnose(fold(Trace(tuple(in_passes([4, 3, 4, 4])), skips_at=skips)))
    assert (found.mistake.code, found.states_steps) == ("GA303", states_steps)
    assert ("(at line 5)" in found.message) == (skips is not None)
