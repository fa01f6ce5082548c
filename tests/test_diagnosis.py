"""The ledger and the diagnosis on hand-written traces: every expected weight is worked out by hand here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from traces import MODEL, at, backward, clip, codes, loop, step, weights, zero

from gradcheck_accum.diagnosis import diagnose
from gradcheck_accum.ledger.events import (
    AverageUpdate,
    Backward,
    Event,
    Factor,
    GraphsHeld,
    LossShown,
    Opaque,
    Operation,
    Purpose,
    Reason,
    Reduction,
    ScaleGrads,
    ScalerUpdate,
    SchedulerStep,
    ShownLoss,
    Term,
    Trace,
    Unscale,
)
from gradcheck_accum.ledger.folding import fold
from gradcheck_accum.ledger.ranks import joined
from gradcheck_accum.ledger.weights import read_weights
from gradcheck_accum.ledger.windows import Fate


def test_a_right_loop_weighs_one_everywhere() -> None:
    events = list(loop([4, 4], 4))
    assert weights(events) == [[1.0] * 4] * 2
    assert codes(events) == []


def test_unscaled_entries_weigh_the_length_of_the_window() -> None:
    events = list(loop([4, 4]))
    assert weights(events) == [[4.0] * 4] * 2
    assert codes(events) == ["GA101"]


def test_ranks_that_step_at_every_micro_batch_need_no_division() -> None:
    """Two micro-batches make a step, one of each rank: the average over the ranks divides by 2, and K is 1."""
    term = Term("loss", Reduction.MEAN, 5)
    events: list[Event] = []
    for batch in range(3):
        events += [
            Backward(where=at(10), micro_batch=batch, stores=MODEL, terms=(term,), synced=True, ranks=2),
            step(),
            zero(),
        ]
    ledgers = joined([fold(Trace(tuple(events))) for _ in range(2)])
    assert [read_weights(own).relative_weights(own.windows[0]) for own in ledgers] == [(1.0, 1.0)] * 2
    assert [diagnose(own) for own in ledgers] == [[], []]


def test_scaled_by_the_batch_size_as_well() -> None:
    events = list(loop([4, 4], 4, 7))
    assert weights(events) == [[pytest.approx(1 / 7, abs=1e-6)] * 4] * 2
    assert codes(events) == ["GA102"]


def test_scaled_by_k_twice() -> None:
    assert codes(loop([4, 4], 4, 4)) == ["GA102"]


def test_an_objective_coefficient_is_not_loss_scaling() -> None:
    assert codes(loop([4, 4], 4, multiply=(0.3,))) == []
    assert codes(loop([4, 4], multiply=(0.3,))) == ["GA101"]


def test_a_coefficient_equal_to_one_over_k_beside_a_division_by_k_is_the_objectives() -> None:
    assert codes(loop([2, 2], 2, multiply=(0.5,))) == []


def test_a_stated_coefficient_settles_what_a_factor_is() -> None:
    ledger = fold(Trace(tuple(loop([4, 4], multiply=(0.25,)))))
    assert diagnose(ledger) == []
    assert [d.mistake.code for d in diagnose(ledger, read_weights(ledger, coefficient=0.25))] == ["GA101"]


def test_the_source_may_say_what_a_factor_is_for() -> None:
    term = Term("loss", Reduction.MEAN, 7, (Factor(0.25, Operation.DIVIDE, Purpose.OBJECTIVE),))
    events: list[Event] = []
    for batch in range(8):
        events.append(Backward(where=at(10), micro_batch=batch, stores=MODEL, terms=(term,)))
        if batch % 4 == 3:
            events += [step(), zero()]
    assert codes(events) == ["GA101"]


def test_an_unknown_factor_is_no_finding() -> None:
    term = Term("loss", Reduction.MEAN, 7, (Factor(None),))
    events = [Backward(where=at(10), micro_batch=i, stores=MODEL, terms=(term,)) for i in range(4)]
    assert codes([*events, step(), zero()]) == []


def test_gradients_scaled_after_the_fact_count_as_scaled() -> None:
    divide = ScaleGrads(where=at(18), stores=MODEL, factor=Factor(0.25, Operation.DIVIDE))
    assert codes(loop([4, 4], closing=(divide, step(), zero()))) == []
    assert codes(loop([4, 4], 4, closing=(divide, step(), zero()))) == ["GA102"]


def test_a_sum_objective_needs_no_scaling() -> None:
    events = list(loop([4, 4, 3], reduction=Reduction.SUM))
    assert codes(events) == []
    assert weights(events)[0] == [1.0] * 4


def test_a_sum_divided_by_its_own_count_is_a_mean() -> None:
    assert codes(loop([4, 4], 7, reduction=Reduction.SUM)) == ["GA101"]
    assert codes(loop([4, 4], 7, 4, reduction=Reduction.SUM)) == []


def test_a_sum_divided_by_the_windows_count_is_right() -> None:
    assert codes(loop([4, 4], 28, reduction=Reduction.SUM)) == []
    assert codes(loop([4, 4], 28, 4, reduction=Reduction.SUM)) == ["GA102"]


def test_remainder_divided_by_the_full_k() -> None:
    events = list(loop([4, 4, 3], 4))
    assert weights(events)[-1] == [0.75] * 3
    assert codes(events) == ["GA103"]
    assert codes(loop([4, 4, 3])) == ["GA101"]


def test_remainder_divided_by_its_own_length_is_right() -> None:
    batches = [backward(i, 4) for i in range(4)], [backward(i, 3) for i in range(4, 7)]
    assert codes([*batches[0], step(), zero(), *batches[1], step(), zero()]) == []


def test_mean_of_means() -> None:
    events = [backward(0, 2, units=4), backward(1, 2, units=1), step(), zero()]
    # N = 5, c = 1/2: weights 5 / (2 * 4) and 5 / (2 * 1).
    assert weights(events) == [[0.625, 2.5]]
    assert codes(events) == ["GA104"]


@pytest.mark.parametrize("units", [(0, 3, 3), (0, 2, 4), (3, 0, 0)])
def test_the_mean_of_no_units_takes_a_share_and_is_no_second_division(units: tuple[int, ...]) -> None:
    """A third of the step goes to nothing: the others' units have about 2/3 of their weight."""
    events = [backward(i, 3, units=n) for i, n in enumerate(units)]
    assert codes([*events, step(), zero()]) == ["GA104"]


def test_windows_without_any_unit_and_sums_over_the_windows_units_are_no_mean_of_means() -> None:
    nothing = [backward(i, 3, units=0) for i in range(3)]
    sums = [backward(i, 7, units=n, reduction=Reduction.SUM) for i, n in enumerate((0, 3, 4))]
    assert codes([*nothing, step(), zero()]) == []
    assert codes([*sums, step(), zero()]) == []


def test_units_weighed_by_their_share_are_right() -> None:
    events = [backward(0, 5 / 4, units=4), backward(1, 5, units=1), step(), zero()]
    assert codes(events) == []


def test_zeroed_before_every_batch() -> None:
    assert codes(loop([4, 4], 4, before=(zero(9),), closing=(step(),))) == ["GA201"]
    assert codes(loop([4, 4], before=(zero(9),), closing=(step(),))) == ["GA101", "GA201"]


def test_zeroed_between_backward_and_step() -> None:
    events = list(loop([4, 4], 4, after=(zero(11),), closing=(step(),)))
    assert weights(events) == [[0.0] * 4] * 2
    assert codes(events) == ["GA202"]


def test_zeroed_once_in_the_middle_of_a_window() -> None:
    window = [backward(0, 4), backward(1, 4), zero(15), backward(2, 4), backward(3, 4), step(), zero()]
    assert codes(window) == ["GA202"]


def test_two_windows_of_two_show_a_clearing_at_every_micro_batch() -> None:
    """The first has no step before it, after which the other clearing of its two would show."""
    every = [event for batch in range(4) for event in (backward(batch, 2), *((step(),) if batch % 2 else ()), zero())]
    assert codes(every) == ["GA201"]
    once = [backward(0, 2), zero(), backward(1, 2), step(), zero(), backward(2, 2), backward(3, 2), step(), zero()]
    assert "GA201" not in codes(once)


def test_never_zeroed_and_zeroed_for_one_store_only() -> None:
    assert codes(loop([4, 4], 4, closing=(step(),))) == ["GA203"]
    both = frozenset({"a", "b"})
    closing = (
        step(20, "opt_a", frozenset({"a"})),
        step(21, "opt_b", frozenset({"b"})),
        zero(22, frozenset({"a"})),
    )
    ledger = fold(Trace(tuple(loop([4, 4], 4, stores=both, closing=closing))))
    assert [(d.mistake.code, d.where.line) for d in diagnose(ledger)] == [("GA204", 21)]


def test_remainder_left_at_the_end() -> None:
    tail = [backward(8, 4), backward(9, 4)]
    assert codes([*loop([4, 4], 4), *tail]) == ["GA301"]
    assert codes([*loop([4, 4], 4), *tail], complete=False) == []


def test_remainder_cleared_by_the_next_epoch() -> None:
    def epoch(number: int) -> list[Event]:
        events: list[Event] = [zero(5)]
        for i in range(6):
            events.append(backward(6 * number + i, 4, epoch=number))
            if (i + 1) % 4 == 0:
                events += [step(), zero()]
        return events

    ledger = fold(Trace((*epoch(0), *epoch(1))))
    assert [len(w.entries) for w in ledger.windows] == [4, 4]
    assert [[e.fate for e in w.entries] for w in ledger.abandoned] == [[Fate.WIPED] * 2, [Fate.LEFT] * 2]
    assert [d.mistake.code for d in diagnose(ledger)] == ["GA301"]


def test_remainder_leaks_into_the_next_epoch() -> None:
    events: list[Event] = []
    for number in range(2):
        for i in range(6):
            events.append(backward(6 * number + i, 4, epoch=number))
            if (i + 1) % 4 == 0:
                events += [step(), zero()]
    assert weights(events)[-1] == [1.5] * 6
    assert codes(events) == ["GA301"]


def test_a_counter_that_no_epoch_resets_loses_nothing() -> None:
    def events(left: int) -> Iterator[Event]:
        for i in range(12 + left):
            yield backward(i, 4, epoch=i // 6)
            if (i + 1) % 4 == 0:
                yield from (step(), zero())

    assert codes(events(0)) == []
    assert codes(events(2), assumed_length=True) == []
    assert codes(events(2)) == ["GA301"]


def test_off_by_one() -> None:
    assert codes(loop([1, 4, 4], 4)) == ["GA302"]
    assert codes(loop([5, 5], 4)) == ["GA302"]
    assert codes(loop([1, 2, 4, 4, 4], 1)) != []


def test_a_window_that_opens_short_and_is_scaled_by_its_own_length_is_right() -> None:
    events = [backward(0, 1), step(), zero()]
    for window in range(3):
        events += [backward(1 + 4 * window + i, 4) for i in range(4)]  # type: ignore[misc]
        events += [step(), zero()]  # type: ignore[list-item]
    assert codes(events) == []


def test_step_every_batch_needs_a_k_that_the_source_states() -> None:
    assert codes(loop([1] * 8, 4, closing=(step(accumulation_steps=4), zero()))) == ["GA304"]
    assert codes(loop([1] * 8)) == []


def test_passes_that_are_shorter_than_k_step_for_their_remainder() -> None:
    def passes(*lengths: int) -> list[Event]:
        closing = (step(accumulation_steps=4), zero())
        return [e for epoch, n in enumerate(lengths) for e in loop([n], 4, closing=closing, epoch=epoch)]

    assert codes(passes(1)) == codes(passes(3)) == codes(passes(1, 1)) == codes(passes(3, 3)) == ["GA103"]
    assert codes(passes(4, 4)) == []


def test_clip_before_the_window_is_complete() -> None:
    assert codes(loop([4, 4], 4, after=(clip(),))) == ["GA401"]
    assert codes(loop([4, 4], 4, closing=(clip(), step(), zero()))) == []
    assert codes(loop([1, 1, 1], after=(clip(),))) == []


def test_clip_with_nothing_to_clip() -> None:
    assert codes(loop([4, 4], 4, closing=(step(), zero(), clip()))) == ["GA402"]


def test_a_clip_behind_the_last_step() -> None:
    right = [*loop([4, 4], 4), backward(8, 4), backward(9, 4)]
    assert codes([*right, step(), clip(), zero()]) == codes([*right, step(), clip()]) == ["GA103", "GA402"]
    # What is left of an epoch is there to be clipped, and so are gradients that are never cleared.
    assert codes([*right, clip()]) == ["GA301"]
    assert codes([*loop([4, 4], 4, closing=(step(),)), clip()]) == ["GA203"]
    # What was cleared out of sight may have been filled out of sight.
    assert codes([*loop([4, 4], 4), Opaque(where=at(30), stores=MODEL, reason=Reason("unknown")), clip()]) == []


def test_clip_while_scaled() -> None:
    unscale = Unscale(where=at(18), stores=MODEL)
    through = step(through_scaler=True)
    assert codes(loop([4, 4], 4, scaled=True, closing=(clip(), through, zero()))) == ["GA501"]
    assert codes(loop([4, 4], 4, scaled=True, closing=(unscale, clip(), through, zero()))) == []


def test_a_step_past_the_scaler() -> None:
    unscale = Unscale(where=at(18), stores=MODEL)
    assert codes(loop([4, 4], 4, scaled=True)) == ["GA503"]
    assert codes(loop([4, 4], 4, scaled=True, closing=(unscale, step(), zero()))) == []
    assert codes(loop([4, 4], 4, scaled=True, closing=(step(through_scaler=True), zero()))) == []


def test_the_scale_divided_out_or_chosen_at_every_micro_batch() -> None:
    unscale, update = Unscale(where=at(12), stores=MODEL), ScalerUpdate(where=at(13))
    through = step(through_scaler=True)
    assert codes(loop([4, 4], 4, scaled=True, after=(unscale,), closing=(through, zero()))) == ["GA502"]
    assert codes(loop([4, 4], 4, scaled=True, after=(update,), closing=(through, zero()))) == ["GA502"]
    assert codes(loop([4, 4], 4, scaled=True, closing=(unscale, through, update, zero()))) == []
    assert codes(loop([1, 1, 1], scaled=True, closing=(unscale, through, update, zero()))) == []


def test_schedules_and_averages_at_every_micro_batch() -> None:
    fast, planned = SchedulerStep(where=at(30), horizon=3), SchedulerStep(where=at(30), horizon=12)
    average = AverageUpdate(where=at(31))
    assert codes(loop([4, 4, 4], 4, after=(fast,))) == ["GA601"]
    assert codes(loop([4, 4, 4], 4, after=(planned,))) == []
    assert codes(loop([4, 4, 4], 4, closing=(step(), zero(), fast))) == []
    assert codes(loop([4, 4, 4], 4, after=(average,))) == ["GA602"]
    assert codes(loop([4, 4, 4], 4, closing=(step(), zero(), average))) == []
    # Once per step and once per epoch is not once per micro-batch.
    assert codes(loop([2, 2], 2, closing=(step(), zero(), fast))) == []


def test_two_schedulers_on_one_line_are_not_one_that_moves_twice() -> None:
    both = tuple(SchedulerStep(where=at(30), scheduler=name) for name in ("first", "second"))
    assert codes(loop([2, 2, 2, 2], 2, closing=(step(), zero(), *both))) == []
    assert codes(loop([2, 2, 2, 2], 2, after=both)) == ["GA601"]
    averages = tuple(AverageUpdate(where=at(30), average=name) for name in ("first", "second"))
    assert codes(loop([2, 2, 2, 2], 2, closing=(step(), zero(), *averages))) == []


def test_a_schedule_that_was_made_for_anything_but_the_steps() -> None:
    # 12 micro-batches, 3 steps: 12 is planned in micro-batches, 3 in steps, and 7 is neither.
    for horizon, every_batch, every_step in ((3, ["GA601"], []), (7, [], []), (12, [], ["GA603"]), (24, [], [])):
        move = SchedulerStep(where=at(30), horizon=horizon)
        assert codes(loop([4, 4, 4], 4, after=(move,))) == every_batch
        assert codes(loop([4, 4, 4], 4, closing=(step(), zero(), move))) == every_step
    cut_short = SchedulerStep(where=at(30), horizon=12)
    assert codes(loop([4, 4, 4], 4, closing=(step(), zero(), cut_short)), complete=False) == []


def test_gradients_that_stay_local_to_their_rank() -> None:
    def window(*synced: bool | None) -> list[Event]:
        events: list[Event] = []
        for turn in range(3):
            events += [backward(4 * turn + i, 4, synced=one) for i, one in enumerate(synced)]
            events += [step(), zero()]
        return events

    assert codes(window(False, False, False, True)) == []
    assert codes(window(True, True, True, True)) == ["GA701"]
    assert codes(window(True, False, True, True)) == []
    assert codes(window(False, False, False, False)) == ["GA702"]
    assert codes(window(True, True, True, False)) == ["GA702"]
    assert codes(window(None, None, None, None)) == []
    assert codes(window(True, True, True, None)) == []
    assert codes(loop([1, 1, 1], synced=True)) == []


def test_a_mean_of_divided_losses_that_is_shown() -> None:
    def shown(share: float, micro_batches: int = 12, line: int = 10) -> LossShown:
        each = ShownLoss(share / micro_batches)
        return LossShown(where=at(40), shown_at=at(41), backward=at(line), losses=(each,) * micro_batches)

    assert codes([*loop([4, 4, 4], 4), shown(1.0)]) == ["GA802"]
    assert codes([*loop([4, 4, 4], 4), shown(4.0)]) == []
    assert codes([*loop([4, 4, 4], 4), shown(1.0), shown(3.0)]) == []
    assert codes([*loop([4, 4, 4], 4), shown(1.0, micro_batches=1)]) == []
    assert codes([*loop([4, 4, 4], 4), shown(1.0, line=11)]) == []
    assert codes([*loop([1, 1, 1]), shown(1.0)]) == []
    # The gradients were divided, and the loss was not.
    divided = ScaleGrads(where=at(19), stores=MODEL, factor=Factor(0.25, Operation.DIVIDE))
    assert codes([*loop([4, 4, 4], closing=(divided, step(), zero())), shown(1.0)]) == []


def test_a_place_that_keeps_the_losses_of_a_pass() -> None:
    def passes(*counts: int, epoch: int | None = 0) -> list[Event]:
        events: list[Event] = []
        for turn, count in enumerate(counts):
            events += [backward(4 * turn + i, 4, epoch=epoch) for i in range(4)]
            events += [GraphsHeld(where=at(15), count=count, read=True), step(), zero()]
        return events

    assert codes(passes(4, 8)) == ["GA801"]
    assert codes(passes(4, 4)) == []
    assert codes(passes(4)) == []
    assert codes(passes(0, 0)) == []
    # Where passes are not distinguished, it takes one step more, and a pass ends where less is held.
    assert codes(passes(4, 8, epoch=None)) == []
    assert codes(passes(4, 8, 12, epoch=None)) == ["GA801"]
    assert codes(passes(4, 8, 12, 4, 8, 12, epoch=None)) == ["GA801"]
    assert codes(passes(4, 8, 4, 8, 4, 8, epoch=None)) == []


def test_graphs_that_are_held_on_and_on() -> None:
    def closing(*counts: int) -> list[Event]:
        events: list[Event] = []
        for i, count in enumerate(counts):
            events += [backward(i), GraphsHeld(where=at(19), count=count), step(), zero()]
        return events

    assert codes(closing(4, 8, 12, 16)) == ["GA801"]
    assert codes(closing(4, 8, 12, 4, 8, 12)) == ["GA801"]
    # Several variables hold one each, some from a later turn on (a critic's loss, and a generator's): no more follow.
    assert codes(closing(1, 2, 3, 3, 2, 3)) == []
    assert codes(closing(4, 4, 4, 4)) == []
    assert codes(closing(1, 2, 1, 2, 1, 2)) == []
    # One more from the second turn on, and one in every other turn (a policy that is updated less often).
    assert codes(closing(2, 3, 4, 3, 4, 3, 4)) == []
    assert codes(closing(2, 3, 4, 2, 3, 4, 2)) == ["GA801"]


def test_the_losses_that_variables_still_hold_at_the_steps_of_two_optimizers() -> None:
    def turns(*counts: tuple[int, int]) -> list[Event]:
        events: list[Event] = []
        for i, (first, second) in enumerate(counts):
            events += [backward(2 * i), GraphsHeld(where=at(19), count=first), step(), zero()]
            events += [backward(2 * i + 1), GraphsHeld(where=at(29), count=second), step(), zero()]
        return events

    # At the first step the other loss of the turn before is there too, from the second turn on.
    assert codes(turns((1, 2), (3, 3), (3, 3), (3, 3))) == []
    assert codes(turns((1, 2), (3, 4), (5, 6), (7, 8))) == ["GA801"]


def test_a_window_that_misses_a_micro_batch_in_the_middle_of_an_epoch() -> None:
    events: list[Event] = []
    for batch in range(12):
        if batch != 5:
            events.append(backward(batch, 4, epoch=0))
        if batch % 4 == 3:
            events += [step(), zero()]
    assert codes(events) == ["GA303"]
    # The same short window at the epoch's end is a remainder.
    assert codes([*loop([4, 4, 3], 4, epoch=0)]) == ["GA103"]


def test_two_losses_of_one_batch_are_two_terms_not_two_micro_batches() -> None:
    events: list[Event] = []
    for i in range(6):
        events += [zero(), backward(i, line=10), backward(i, line=11), step()]
    assert codes(events) == []


@pytest.mark.parametrize("k", [2, 4])
def test_the_last_micro_batch_on_a_line_of_its_own_belongs_to_the_window(k: int) -> None:
    events: list[Event] = []
    for i in range(2 * k):
        last = i % k == k - 1
        events.append(backward(i, k, line=12 if last else 10))
        if last:
            events += [step(), zero()]
    assert weights(events) == [[1.0] * k] * 2
    assert codes(events) == []


def test_a_flush_with_a_backward_of_its_own_is_the_same_loss() -> None:
    full = list(loop([4, 4], 4))
    rest = [backward(8 + i, 4, line=30) for i in range(2)]
    right = [backward(8 + i, 2, line=30) for i in range(2)]
    assert codes([*full, *rest, step(31), zero(32)]) == ["GA103"]
    assert codes([*full, *right, step(31), zero(32)]) == []


def test_plain_training_before_accumulation_is_right() -> None:
    plain = [e for i in range(6) for e in (backward(i, line=5), step(6), zero(7))]
    assert codes([*plain, *loop([4, 4, 4, 4], 4)]) == []


def test_gradients_that_only_pass_through_may_be_cleared() -> None:
    events: list[Event] = []
    for i in range(6):
        events += [backward(i, line=10), zero(11), backward(i, line=12), step(), zero()]
    assert codes(events) == []


def test_gradients_meant_for_another_optimizer_may_be_cleared() -> None:
    d, g = frozenset({"D"}), frozenset({"G"})
    events: list[Event] = []
    for i in range(4):
        events += [zero(stores=d), backward(i, line=10, stores=d), step(11, "opt_d", d)]
        events += [zero(stores=g), backward(i, line=12, stores=d | g), step(13, "opt_g", g)]
    assert codes(events) == []
    assert weights(events) == [[1.0]] * 8


@pytest.mark.parametrize("length", [1, 3])
def test_what_another_optimizers_loss_leaves_is_cleared_before_it_only(length: int) -> None:
    d, g = frozenset({"D"}), frozenset({"G"})
    events: list[Event] = []
    for turn in range(4):
        batches = range(turn * length, (turn + 1) * length)
        events += [*(backward(i, length, line=10, stores=d) for i in batches), step(11, "opt_d", d), zero(12, d)]
        events += [*(backward(i, length, line=13, stores=d | g) for i in batches), step(14, "opt_g", g), zero(15, g)]
    found = diagnose(fold(Trace(tuple(events))))
    assert [(f.mistake.code, f.where.line, len(f.windows)) for f in found] == [("GA204", 11, 3)]
    assert "line 13" in found[0].message
    # Where it is cleared after the other's turn, nothing is left of it.
    assert codes([e for event in events for e in ((event, zero(16, d)) if event.where.line == 14 else (event,))]) == []


def test_a_loss_that_two_optimizers_share_is_no_strangers() -> None:
    encoder, head = frozenset({"encoder"}), frozenset({"head"})
    events: list[Event] = []
    for i in range(11):
        events.append(backward(i, 4, stores=encoder | head))
        if (i + 1) % 4 == 0:
            events += [step(20, "opt_e", encoder), step(21, "opt_h", head), zero(22, encoder | head)]
    # Only one of them steps for the remainder.
    events += [step(30, "opt_e", encoder), zero(31, encoder)]
    assert "GA204" not in codes(events)
    assert "GA301" in codes(events)


def test_micro_batches_cleared_and_never_used_are_no_passers_through() -> None:
    # All but the last micro-batch run on a line of their own, inside no_sync() say, and are lost all the same.
    events: list[Event] = []
    for i in range(8):
        events += [zero(), backward(i, 2, line=10 if i % 2 == 0 else 12)]
        events += [step()] if i % 2 else []
    assert codes(events) == ["GA201"]


def test_what_could_not_be_followed_is_no_finding() -> None:
    events = [Opaque(where=at(5), stores=MODEL, reason=Reason("an unknown call")), *loop([4, 4])]
    assert codes(events) == []


def test_nothing_is_said_of_a_short_window_where_the_rest_could_not_be_followed() -> None:
    """Whether every pass is shorter than K, or only the one window that was seen, is not known then."""
    first = [backward(0, 4), step(accumulation_steps=4), zero()]
    rest = [Opaque(where=at(5), stores=MODEL, reason=Reason("how many micro-batches a window has"))]
    assert codes(first) == ["GA103"]
    assert codes([*first, *(e for batch in range(1, 6) for e in (backward(batch, 4), *rest))]) == []


def diagnosed(events: Iterable[Event], **trace: object) -> list[tuple[str, str, tuple[int, ...]]]:
    """The code, the words and the windows of each mistake."""
    ledger = fold(Trace(tuple(events), **trace))  # type: ignore[arg-type]
    return [(d.mistake.code, str(d.message), d.windows) for d in diagnose(ledger)]


def test_what_an_undivided_loss_counts_is_said_and_nothing_else_is_guessed() -> None:
    ((code, said, windows),) = diagnosed(loop([4, 4]))
    assert (code, windows) == ("GA101", (0, 1))
    assert said.endswith("each is weighted 4x relative to the large batch")


def test_what_a_loss_that_is_divided_twice_counts_is_said() -> None:
    ((code, said, windows),) = diagnosed(loop([4, 4], 4, 4))
    assert (code, windows) == ("GA102", (0, 1))
    assert "each is weighted only 0.25x relative to the large batch" in said


def test_a_division_that_was_taken_for_the_objectives_is_named_where_it_may_be_for_a_k_that_never_shows() -> None:
    """Three of what may have been meant to be five: a third too much of 3, or three fifths of it."""
    ((code, said, _),) = diagnosed(loop([3, 3], 5))
    assert code == "GA101"
    assert said.endswith(
        "each is weighted 3x relative to the large batch, or 0.6x if the division by 5 is not part of the objective"
    )


def test_one_loss_of_a_window_that_is_not_divided_counts_k_times() -> None:
    events = [backward(0, 3), backward(1), backward(2, 3), step(), zero(), *loop_from(3, [3], 3)]
    found = [(code, said) for code, said, _ in diagnosed(events) if code == "GA101"]
    ((_, said),) = found
    assert "the loss of 1 of 3 micro-batches is not divided" in said
    assert "it is weighted 3x relative to the large batch" in said


def loop_from(first: int, lengths: Iterable[int], *divisors: float) -> Iterator[Event]:
    batch = first
    for length in lengths:
        for _ in range(length):
            yield backward(batch, *divisors)
            batch += 1
        yield from (step(), zero())


def test_where_k_changes_every_window_that_is_not_divided_is_reported() -> None:
    found = diagnosed(loop([2, 3, 4, 2, 3, 4]))
    assert {code for code, _, _ in found} == {"GA101"}
    assert sorted(window for _, _, windows in found for window in windows) == [0, 1, 2, 3, 4, 5]


def test_a_sum_is_not_misscaled_in_a_shorter_window_of_as_many_units() -> None:
    """Two micro-batches of 14 units have the weight of four of 7: a constant divides both by the same large batch."""
    events = [*loop([4, 4], 28, reduction=Reduction.SUM)]
    events += [backward(batch, 28, units=14, reduction=Reduction.SUM) for batch in (8, 9)] + [step(), zero()]
    assert codes(events) == []


def test_messages_name_the_step_in_words() -> None:
    made_for_micro_batches = SchedulerStep(where=at(30), horizon=12)
    cut_short = fold(Trace(tuple(loop([4, 4, 4], 4, closing=(step(), zero(), made_for_micro_batches)))))
    averaged = fold(Trace(tuple(loop([4, 4, 4], 4, after=(AverageUpdate(where=at(30), average="ema"),)))))
    for code, ledger in (("GA603", cut_short), ("GA602", averaged)):
        (found,) = (d for d in diagnose(ledger) if d.mistake.code == code)
        assert " (at line 20): " in found.message


def test_a_longer_window_that_is_divided_by_its_own_length_is_right() -> None:
    """No pass is known: what it holds beyond K is no remainder of an earlier one where each loss is divided by all."""
    events = [*loop([3, 3], 3)]
    events += [backward(batch, 5) for batch in range(6, 11)] + [step(), zero()] + [*loop_from(11, [3, 3], 3)]
    assert weights(events) == [[1.0] * 3, [1.0] * 3, [1.0] * 5, [1.0] * 3, [1.0] * 3]
    assert codes(events) == []


def test_what_waits_beside_the_gradients_for_an_average_is_not_cleared() -> None:
    """fully_shard keeps what is not averaged yet apart: of three micro-batches an early clearing takes none."""
    term = Term("loss", Reduction.MEAN, 5, (Factor(1 / 3, Operation.DIVIDE),))

    def one(batch: int, synced: bool) -> Backward:
        return Backward(where=at(10), micro_batch=batch, stores=MODEL, terms=(term,), synced=synced, kept_apart=True)

    window: list[Event] = [one(0, False), zero(15), one(1, False), one(2, True), step(), zero()]
    again: list[Event] = [one(3, False), one(4, False), one(5, True), step(), zero()]
    assert weights([*window, *again]) == [[1.0] * 3] * 2
    assert "GA201" not in codes([*window, *again])
