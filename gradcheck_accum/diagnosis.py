"""From a ledger to the mistakes that it shows, in the words that a person needs.

Each ``_find_…`` function reads one pattern off the windows of one account (one optimizer on one store). The patterns
are independent: a loop that makes two mistakes shows both. Nothing is concluded from a window whose events could not
be followed, nor from a weight that is not known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gradcheck_accum.events import Backward, Clip, Event, Location, Reduction, Step, Unscale, ZeroGrad
from gradcheck_accum.ledger import Entry, Fate, Ledger, Window, nominal_steps
from gradcheck_accum.mistakes import CATALOGUE, Mistake
from gradcheck_accum.weights import Readings, Series, Weight, read_weights


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One mistake, the place that causes it, and what the ledger shows.

    ``windows`` are the indices of the windows that show it (empty for gradients that no step ever consumed);
    ``message`` states the fact and its consequence, ``help`` the remedy.
    """

    mistake: Mistake
    where: Location
    message: str
    help: str
    windows: tuple[int, ...] = ()


def diagnose(ledger: Ledger, *, coefficient: float | None = None) -> list[Diagnosis]:
    """Every mistake that the ledger shows, in order of place; what is unknown is never one.

    ``coefficient`` is the loss's intended coefficient where the caller states it.
    """
    readings = read_weights(ledger, coefficient=coefficient)
    found: dict[tuple[str, Location], Diagnosis] = {}
    for optimizer, store in ledger.accounts():
        account = _Account.of(ledger, optimizer, store, readings)
        for find in _FINDERS:
            for diagnosis in find(account):
                key = diagnosis.mistake.code, replace(diagnosis.where, end_line=0, end_column=0)
                known = found.setdefault(key, diagnosis)
                windows = tuple(sorted({*known.windows, *diagnosis.windows}))
                found[key] = replace(known, windows=windows)
    return sorted(found.values(), key=lambda d: (d.where, d.mistake.code))


@dataclass(frozen=True, slots=True)
class _Account:
    """The windows of one optimizer on one store, with what every finder asks of them."""

    ledger: Ledger
    optimizer: str
    store: str
    windows: tuple[Window, ...]
    abandoned: tuple[Window, ...]
    readings: Readings
    steps: int

    @classmethod
    def of(cls, ledger: Ledger, optimizer: str, store: str, readings: Readings) -> _Account:
        closed = ledger.account(optimizer, store)
        abandoned = tuple(w for w in ledger.abandoned if (w.optimizer, w.store) == (optimizer, store))
        return cls(ledger, optimizer, store, closed, abandoned, readings, nominal_steps(closed) or 1)

    def known(self) -> tuple[Window, ...]:
        """The closed windows that could be followed."""
        return tuple(w for w in self.windows if not w.unknown)

    def series(self) -> tuple[Series, ...]:
        return self.readings.series.get((self.optimizer, self.store), ())

    def shares(self, window: Window, series: Series) -> _Shares | None:
        """How one series of a window adds up, or None where it has no live entry or a weight is not known."""
        weights = [w for w in self.readings.weights(window, series) if w.entry.fate is not Fate.STALE]
        live = [w for w in weights if w.entry.fate is Fate.LIVE]
        if not live or any(w.relative is None for w in weights):
            return None
        return _Shares(window, tuple(weights), tuple(live), self.readings.kind(window, series))

    def same(self, left: float, right: float) -> bool:
        return self.readings.same(left, right)


@dataclass(frozen=True, slots=True)
class _Shares:
    """The known weights of one series in one window."""

    window: Window
    weights: tuple[Weight, ...]
    live: tuple[Weight, ...]
    kind: Reduction

    @property
    def length(self) -> int:
        return len(self.weights)

    @property
    def level(self) -> float:
        """The mean relative weight of the live entries, every unit counted once: 1 is right."""
        if self.kind is Reduction.SUM or self.length == 0:
            return math.fsum(w.relative or 0.0 for w in self.live) / len(self.live)
        # Weighted by units, so that a mean of means over unequal counts still adds up to 1.
        total = math.fsum(w.units or 1.0 for w in self.live)
        return math.fsum((w.relative or 0.0) * (w.units or 1.0) for w in self.live) / total


def _diagnosis(code: str, where: Location, message: str, help: str, *windows: Window) -> Diagnosis:
    return Diagnosis(CATALOGUE[code], where, message, help, tuple(sorted({w.index for w in windows if w.step})))


def _times(weight: float) -> str:
    return f"{weight:.4g}x"


def _plural(count: int, noun: str = "micro-batch") -> str:
    suffix = "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{suffix}"


def _line(where: Location) -> str:
    return f"line {where.line}"


def _find_scale(account: _Account) -> Iterator[Diagnosis]:
    """GA101, GA102, GA104: every entry of a full window too heavy or too light, or entries uneven."""
    for series in account.series():
        for window in account.known():
            shares = account.shares(window, series)
            if shares is None or shares.length < 2 or not _is_full(account, window):
                continue
            where = shares.live[0].entry.backward.where
            yield from _judge_level(account, shares, where)
            if shares.kind is not Reduction.NONE:
                yield from _judge_evenness(account, shares, where)


def _is_full(account: _Account, window: Window) -> bool:
    return window.micro_batches == account.steps or _windows_differ(account)


def _windows_differ(account: _Account) -> bool:
    """Whether no length is the usual one, as where K changes during training."""
    lengths = Counter(w.micro_batches for w in account.windows)
    return lengths[account.steps] * 2 < len(account.windows) and len(lengths) > 2


def _judge_level(account: _Account, shares: _Shares, where: Location) -> Iterator[Diagnosis]:
    level, length = shares.level, shares.length
    if shares.kind is Reduction.SUM and not account.same(level, 1.0) and level > 1:
        return
    if account.same(level, 1.0) or level <= 0:
        return
    step = shares.window.step
    closes = f"before the step at {_line(step.where)}" if step else ""
    if level > 1:
        if not account.same(level, float(length)) and _is_near_miss(account, level, length):
            return
        yield _diagnosis(
            "GA101",
            where,
            f"the loss is not divided by the number of micro-batches: {length} of them are added up {closes}, and "
            f"each counts {_times(level)} what it counts in the large batch",
            f"divide the loss by {length} (the accumulation steps) before backward()",
            shares.window,
        )
        return
    yield _diagnosis(
        "GA102",
        where,
        f"the loss is divided twice: {length} micro-batches are added up {closes}, and each counts only "
        f"{_times(level)} what it counts in the large batch{_second_divisor(account, shares, level)}",
        "divide by the accumulation steps once; a mean-reduced loss already averages over its batch",
        shares.window,
    )


def _second_divisor(account: _Account, shares: _Shares, level: float) -> str:
    if all(w.units and account.same(level * w.units, 1.0) for w in shares.weights):
        return f" (1/{shares.weights[0].units:g}: divided by the batch size too)"
    if account.same(level * shares.length, 1.0):
        return f" (1/{shares.length}: divided by the accumulation steps once more)"
    return ""


def _is_near_miss(account: _Account, level: float, length: int) -> bool:
    """Whether the loss was divided by a K that is one off the window's length: the window is wrong, not the scale."""
    return any(account.same(level, length / divisor) for divisor in (length - 1, length + 1) if divisor > 1)


def _judge_evenness(account: _Account, shares: _Shares, where: Location) -> Iterator[Diagnosis]:
    relative = [w.relative or 0.0 for w in shares.live]
    low, high = min(relative), max(relative)
    if account.same(low, high) or len(shares.live) < 2:
        return
    counts = [w.units for w in shares.live]
    if None in counts or len({round(c or 0.0, 9) for c in counts}) == 1:
        return
    spoken = ", ".join(f"{count:g}" for count in counts[:8]) + (", …" if len(counts) > 8 else "")
    yield _diagnosis(
        "GA104",
        where,
        f"a mean of means: the micro-batches of this window hold {spoken} units, yet each mean counts the same, so "
        f"a unit weighs between {_times(low)} and {_times(high)} what it weighs in the large batch",
        "sum the loss over the micro-batch and divide by the units of the whole window",
        shares.window,
    )


def _find_remainder_scale(account: _Account) -> Iterator[Diagnosis]:
    """GA103: a shorter window whose entries keep the weight that the full windows' have."""
    for series in account.series():
        full = [account.shares(w, series) for w in account.known() if w.micro_batches == account.steps]
        levels = [s.level for s in full if s is not None and s.length == account.steps]
        if not levels and not (len(account.windows) == 1 and _states_steps(account)):
            continue
        usual = levels[0] if levels else 1.0
        if account.same(usual, float(account.steps)):
            continue
        for window in account.known():
            shares = account.shares(window, series)
            if shares is None or shares.kind is Reduction.SUM or not 0 < shares.length < account.steps:
                continue
            if not account.same(shares.level, usual * shares.length / account.steps):
                continue
            if _opens_short(account) and window.index == 0:
                continue
            step = window.step
            if step is None:
                continue
            yield _diagnosis(
                "GA103",
                step.where,
                f"the last window holds {_plural(shares.length)}, but the loss is still divided by "
                f"{account.steps}: each counts {_times(shares.level)} what it counts in the large batch",
                "divide by the number of micro-batches that the window really holds",
                window,
            )


def _states_steps(account: _Account) -> bool:
    return any(w.step is not None and w.step.accumulation_steps for w in account.windows)


def _find_zeroing(account: _Account) -> Iterator[Diagnosis]:
    """GA201, GA202: entries cleared before the step that should have used them."""
    for window in account.known():
        wiped = [entry for entry in window.with_fate(Fate.WIPED) if not _is_incidental(account, entry)]
        if not wiped or window.step is None:
            continue
        zeros = [event for event in window.events if isinstance(event, ZeroGrad)]
        live = window.with_fate(Fate.LIVE)
        cause = wiped[-1].wiped_by
        if cause is None:
            continue
        if not live:
            yield _diagnosis(
                "GA202",
                cause.where,
                f"gradients are cleared between backward (at {_line(wiped[-1].backward.where)}) and the step at "
                f"{_line(window.step.where)}: none of the {_plural(window.micro_batches)} reaches it",
                "clear the gradients after the step has used them",
                window,
            )
            continue
        gone = len({entry.backward.micro_batch for entry in wiped})
        every_batch = len(zeros) >= window.micro_batches
        yield _diagnosis(
            "GA201" if every_batch else "GA202",
            cause.where,
            f"gradients are cleared {'at every micro-batch' if every_batch else 'in the middle of a window'}: "
            f"{gone} of {_plural(window.micro_batches)} "
            f"{'is' if gone == 1 else 'are'} lost before the step at {_line(window.step.where)}",
            "clear the gradients only after a step",
            window,
        )


def _is_incidental(account: _Account, entry: Entry) -> bool:
    """Whether every gradient from this place is always cleared while other places' reach the step.

    One model's loss leaves gradients in another model that it flows through; clearing those is right.
    """
    where = entry.backward.where.line
    own = [e for w in account.windows for e in w.entries if e.backward.where.line == where]
    others = any(e.fate is Fate.LIVE for w in account.windows for e in w.entries if e.backward.where.line != where)
    return others and all(e.fate is Fate.WIPED for e in own)


def _find_stale(account: _Account) -> Iterator[Diagnosis]:
    """GA203, GA204: entries of earlier windows that stand in this one."""
    stale = [w for w in account.known() if w.with_fate(Fate.STALE) and w.step is not None]
    if not stale:
        return
    window = stale[-1]
    if window.step is None:
        return
    old = len({e.backward.micro_batch for e in window.with_fate(Fate.STALE)})
    elsewhere = [
        event
        for event in account.ledger.trace.events
        if isinstance(event, ZeroGrad) and account.store not in event.stores
    ]
    cleared_here = any(isinstance(e, ZeroGrad) for w in account.windows for e in w.events)
    if elsewhere and not cleared_here:
        yield _diagnosis(
            "GA204",
            window.step.where,
            f"gradients of {account.store} are never cleared, though others are (at {_line(elsewhere[0].where)}): "
            f"{_plural(old)} of earlier windows still stand in the gradient that this step uses",
            f"clear the gradients of {account.store} too, after the step",
            *stale,
        )
        return
    yield _diagnosis(
        "GA203",
        window.step.where,
        f"gradients are {'not' if cleared_here else 'never'} cleared after the step: {_plural(old)} of earlier "
        "windows still stand in the gradient that it uses",
        "call zero_grad() after the step",
        *stale,
    )


def _find_remainder(account: _Account) -> Iterator[Diagnosis]:
    """GA301: entries that no step consumed, or that leaked into a later pass's first window."""
    if not account.ledger.trace.complete or any(w.unknown for w in (*account.windows, *account.abandoned)):
        return
    spans = [w for w in account.windows if w.spans_passes]
    # A counter that no epoch resets lets windows run on over the epoch's end: nothing is lost but what is left when
    # training ends, and that is none where the length is only the engine's assumption.
    rolls_on = bool(spans) and all(w.micro_batches == account.steps for w in spans)
    lost = [w for w in account.abandoned if not (rolls_on and account.ledger.trace.assumed_length)]
    lost = [w for w in lost if not all(_is_incidental(account, entry) for entry in w.entries)]
    step = _usual_step(account)
    if step is None:
        return
    for window in lost:
        count = window.micro_batches
        how = "left over when the loop ends" if window.entries[-1].fate is Fate.LEFT else "cleared unused"
        yield _diagnosis(
            "GA301",
            step.where,
            f"{_plural(count)} of an epoch never {'reaches' if count == 1 else 'reach'} a step: "
            f"{'it is' if count == 1 else 'they are'} {how}, because the step waits for {account.steps}",
            "step once more after the loop for the micro-batches that are left, divided by their own number",
        )
    for window in account.windows:
        if window.micro_batches > account.steps > 1 and (window.spans_passes or _outgrows(account, window)):
            extra = window.micro_batches - account.steps
            yield _diagnosis(
                "GA301",
                step.where,
                f"the {_plural(extra)} left over from one epoch {'leaks' if extra == 1 else 'leak'} into the first "
                f"window of the next, which then holds {window.micro_batches} instead of {account.steps}",
                "step once more after the loop for the micro-batches that are left, divided by their own number",
                window,
            )


def _outgrows(account: _Account, window: Window) -> bool:
    """Whether a window is longer than the usual one where passes over the data can not be told apart."""
    usual = sum(w.micro_batches == account.steps for w in account.windows)
    return usual > 1 and window.index > 0 and all(e.backward.epoch is None for e in window.fresh())


def _usual_step(account: _Account) -> Step | None:
    steps = [w.step for w in account.windows if w.step is not None]
    if not steps:
        return None
    places = Counter(step.where for step in steps)
    return max(steps, key=lambda step: places[step.where])


def _opens_short(account: _Account) -> bool:
    """Whether the first window is the odd one out: shorter than the windows right after it."""
    lengths = [w.micro_batches for w in account.windows[:3]]
    return len(lengths) > 1 and 0 < lengths[0] < account.steps and lengths[1] == account.steps


def _find_off_by_one(account: _Account) -> Iterator[Diagnosis]:
    """GA302: windows that begin short, or are all one longer or shorter than the K that the loss is divided by."""
    first, *rest = account.known() or [None]
    if first is None or first.step is None or account.steps < 2:
        return
    if _opens_short(account) and not _is_right(account, first):
        yield _diagnosis(
            "GA302",
            first.step.where,
            f"the first window closes after {_plural(first.micro_batches)} instead of {account.steps}: the test for "
            "the boundary counts from 0",
            "test (i + 1) % K == 0 where i counts from 0",
            first,
        )
        return
    for window in (first, *rest):
        for series in account.series():
            shares = account.shares(window, series)
            if shares is None or shares.kind is Reduction.SUM or window.step is None:
                continue
            divisor = shares.length / shares.level
            near = any(account.same(divisor, float(d)) for d in (shares.length - 1, shares.length + 1) if d > 1)
            stated = window.step.accumulation_steps in (None, round(divisor))
            usual = Counter(w.micro_batches for w in account.windows).most_common(1)[0][0]
            if near and stated and window.micro_batches == usual and not window.spans_passes:
                yield _diagnosis(
                    "GA302",
                    window.step.where,
                    f"the window holds {_plural(window.micro_batches)}, but the loss is divided by {divisor:.4g}: "
                    "the step comes one micro-batch off",
                    "make the boundary's test and the divisor the same K",
                    window,
                )


def _is_right(account: _Account, window: Window) -> bool:
    shares = [account.shares(window, series) for series in account.series()]
    known = [s for s in shares if s is not None]
    scaled_elsewhere = any(
        s is not None and account.same(s.level, 1.0)
        for w in account.known()
        if w.micro_batches == account.steps
        for s in [account.shares(w, series) for series in account.series()]
    )
    return bool(known) and scaled_elsewhere and all(account.same(s.level, 1.0) for s in known)


def _find_step_every_batch(account: _Account) -> Iterator[Diagnosis]:
    """GA304: every micro-batch is a window of its own, yet carries the weight of one of K."""
    for window in account.known():
        stated = window.step.accumulation_steps if window.step else None
        if not stated or stated < 2 or any(w.micro_batches != 1 for w in account.windows):
            continue
        for series in account.series():
            shares = account.shares(window, series)
            if shares is not None and window.step is not None and account.same(shares.level, 1.0 / stated):
                yield _diagnosis(
                    "GA304",
                    window.step.where,
                    f"the loss is divided by {stated}, yet every micro-batch steps: no gradient is accumulated and "
                    f"each update is {_times(1.0 / stated)} of what it should be",
                    "step only when the window is complete",
                    window,
                )


def _find_clip(account: _Account) -> Iterator[Diagnosis]:
    """GA401, GA402, GA501: a clip before the last entry, with nothing to clip, or with the scale still inside."""
    for window in account.known():
        if window.step is None:
            continue
        for position, clip in enumerate(window.events):
            if isinstance(clip, Clip):
                yield from _judge_clip(window, clip, window.events[:position], window.events[position + 1 :])


def _judge_clip(window: Window, clip: Clip, before: tuple[Event, ...], after: tuple[Event, ...]) -> Iterator[Diagnosis]:
    last_zero = max((i for i, e in enumerate(before) if isinstance(e, ZeroGrad)), default=-1)
    filled = [e for e in before[last_zero + 1 :] if isinstance(e, Backward)]
    stale = bool(window.with_fate(Fate.STALE))
    wiped_later = any(isinstance(e, ZeroGrad) for e in after)
    missing = len({e.micro_batch for e in after if isinstance(e, Backward)} - {e.micro_batch for e in filled})
    if not filled and not stale:
        yield _diagnosis(
            "GA402",
            clip.where,
            "gradients are clipped where there are none: they have just been cleared or used, so nothing is limited",
            "clip after the window's last backward and before the step",
            window,
        )
        return
    if missing and not wiped_later and window.step is not None:
        yield _diagnosis(
            "GA401",
            clip.where,
            f"gradients are clipped before the window is complete: {_plural(missing)} "
            f"{'is' if missing == 1 else 'are'} still to come before the step at {_line(window.step.where)}, so "
            "what is clipped is not the large batch's gradient",
            "clip once per window, right before the step",
            window,
        )
    scaled = any(e.grad_scaled for e in filled)
    if scaled and not any(isinstance(e, Unscale) for e in before):
        yield _diagnosis(
            "GA501",
            clip.where,
            "gradients are clipped while the grad scaler's scale is still in them, so the limit means nothing",
            "call scaler.unscale_(optimizer) right before the clip",
            window,
        )


_FINDERS = (
    _find_scale,
    _find_remainder_scale,
    _find_zeroing,
    _find_stale,
    _find_remainder,
    _find_off_by_one,
    _find_step_every_batch,
    _find_clip,
)
