"""Watches training inside the user's own program: every window, or every n-th."""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from torch.optim.optimizer import Optimizer

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.engine.reference import ReferenceEngine
from gradcheck_accum.results.acceptance import accepted
from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify.book.holding import Wanted
from gradcheck_accum.verify.book.parameters import parameters_of
from gradcheck_accum.verify.judge.options import Options
from gradcheck_accum.verify.judge.run import judge
from gradcheck_accum.verify.session import ReferenceName, acceptance_at, checked, installed
from gradcheck_accum.verify.stack.frames import user_location
from gradcheck_accum.verify.watching.observer import Observer

_KEPT_WINDOWS = 8
"""Past windows in the ledger: enough to know K, and cheap enough for a training run."""


OnDeviation = Literal["error", "warn"] | Callable[[VerifyResult], object]
"""What a wrong step causes: an `AccumulationError`, an `AccumulationWarning`, or a call of the user's function."""


class AccumulationWarning(UserWarning):
    """A step does not match the large-batch gradient; training continues."""


class AccumulationError(AssertionError):
    """A step does not match the large-batch gradient, or could not be checked.

    ``result`` is the `VerifyResult` with the numbers and the causes.
    """

    def __init__(self, result: VerifyResult) -> None:
        self.result = result
        causes = _causes(result)
        super().__init__(f"{result.verdict.value}: {result.reason}" + (f" ({causes})" if causes else ""))


def _causes(result: VerifyResult) -> str:
    return "; ".join(f"{d.mistake.code} at {d.where}: {d.in_words}" for d in result.diagnosis)


def check(
    loop: Callable[..., object],
    /,
    *args: object,
    reference: ReferenceName = "both",
    loss_coefficient: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
    **kwargs: object,
) -> VerifyResult:
    """Call ``loop(*args, **kwargs)`` once and compare the gradient at each of its steps with the large batch's.

        result = gradcheck_accum.check(train_one_epoch, model, loader, optimizer)

    Weights, gradients and random numbers are not affected. What the project accepts, in its settings or by a comment at
    a diagnosed line, does not count. Exceptions of the loop are passed on.

    :param loop: the training loop; it calls ``backward()`` and the ``step()`` of a ``torch.optim.Optimizer``.
    :param args: its positional arguments.
    :param reference: what gradients are compared with: ``"ledger"`` (the micro-batches' own gradients, correctly
        weighted), ``"replay"`` (the window's data as one large batch), ``"both"``, or ``"sketch"`` (as ``"ledger"``, by
        random projections).
    :param loss_coefficient: the intended coefficient of the loss: its factor in the large batch (1 for a plain mean).
        By default it is inferred, as docs/readings.md describes.
    :param rtol: the allowed relative error |g - g_ref| / |g_ref|, in the Euclidean norm over all parameters of the
        optimizer; given together with ``atol``. By default it is derived from rounding (docs/tolerances.md).
    :param atol: the allowed absolute error |g - g_ref|, added to ``rtol`` times |g_ref|.
    :param select: codes or prefixes that are not accepted, replacing the project's settings: all others are.
    :param ignore: codes or prefixes that are accepted, replacing the project's settings.
    :param kwargs: keyword arguments of the loop; ``accumulation_steps``, or another usual name of K, states K.
    :returns: the result, if every step matches.
    :raises AccumulationError: if a step does not match, or could not be checked.
    :raises ValueError: if only one of ``rtol`` and ``atol`` is given.
    :raises TypeError: if an argument of the loop has the name of one of these parameters.
    :raises SettingsError: if a code or a setting of the project is invalid.
    """
    result = checked(
        loop,
        args,
        kwargs,
        reference=reference,
        loss_coefficient=loss_coefficient,
        rtol=rtol,
        atol=atol,
        select=select,
        ignore=ignore,
    )
    if result.exit_status:
        raise AccumulationError(result)
    return result


class SamplingObserver(Observer):
    """An observer that judges every n-th window as it is closed, and sleeps in between.

    The verdict on a window depends on what came before it (stale gradients, K), so the window before is watched as
    well, but its gradients are read only if the loop changes gradients by hand, or no window was judged yet. What is
    left of them is read once, where it was not cleared. Windows are counted by the steps of the optimizer that steps
    first.
    """

    def __init__(
        self,
        every: int,
        options: Options,
        tell: Callable[[VerifyResult], object],
        acceptance: Callable[[Diagnosis], str],
        on_window: Callable[[VerifyResult], object] | None = None,
        *,
        wanted: Wanted,
    ) -> None:
        super().__init__(wanted=wanted, engine=ReferenceEngine(), max_windows=None)
        self._every = every
        self.options = options
        self.comparer.loss_coefficient = options.loss_coefficient
        self._tell = tell
        self._acceptance = acceptance
        self._on_window = on_window
        self._window = 0
        self.run.attention.sleep(every > 2)
        self._steps_awake: Counter[int] = Counter()
        self._leader: weakref.ref[Optimizer] | None = None
        self._has_judged = False

    def after_step(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` has returned."""
        attention, journal = self.run.attention, self.run.journal
        if attention.elsewhere:
            return
        if not attention.asleep:
            seen = journal.steps
            super().after_step(optimizer)
            self._steps_awake[id(optimizer)] += 1
            self.run.book.read_from_now_on(id(p) for p in parameters_of(optimizer))
            # The first window of another optimizer may have begun while the observer slept.
            complete = self._every == 1 or self._steps_awake[id(optimizer)] > 1
            latest = journal.last_step
            is_read = journal.steps > seen and latest is not None and not latest.step.unread
            if complete and is_read and self._window % self._every == self._every - 1:
                self._judge()
        self._leader = self._leader or weakref.ref(optimizer)
        if self._leader() is optimizer:
            self._window += 1
            self._turn()

    def _turn(self) -> None:
        """Fall asleep after a window that was judged, wake for the one before the next."""
        asleep = self._every > 2 and self._window % self._every < self._every - 2
        if self.run.attention.asleep and not asleep:
            self.arrivals.listen()
            self.restart(reads=self._needs_window_before())
            self._steps_awake.clear()
        elif asleep and not self.run.attention.asleep:
            self.arrivals.release()
            self.run.book.forget()
            self.run.losses.forget()
        self.run.attention.sleep(asleep)

    def _needs_window_before(self) -> bool:
        """Whether the gradients of the window before the checked one have to be read."""
        run = self.run
        # Version counters, which are all that is looked at otherwise, do not show what is done to a rank's shard. What
        # several optimizers step on is replayed at the first of their steps, with the weights of that time.
        unclear = run.book.sharded or (run.measurer.replays and run.book.has_shared())
        return unclear or not self._has_judged or self.changes.any_by_hand

    def _judge(self) -> None:
        self._has_judged = True
        result = judge(self, "the loop", self.options, complete=False)
        last = result.windows[-1]
        shown = tuple(d for d in result.diagnosis if last.index in d.windows or not d.mistake.changes_gradient)
        self.run.journal.forget_before(_KEPT_WINDOWS)
        of_window = replace(result, reason=last.reason or result.reason, windows=(last,), diagnosis=shown)
        of_window = accepted(of_window, self._acceptance)
        if self._on_window is not None:
            self._on_window(of_window)
        deviates = any(w.verdict is Verdict.DEVIATES and not w.accepted for w in of_window.windows)
        if deviates or any(not d.mistake.by_construction for d in of_window.diagnosis):
            self._tell(of_window)


@contextmanager
def watch(
    *,
    every: int = 1,
    on_deviation: OnDeviation = "error",
    on_window: Callable[[VerifyResult], object] | None = None,
    reference: ReferenceName | None = None,
    loss_coefficient: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
) -> Iterator[None]:
    """Watch the training loop in the block, and report a wrong gradient at the step itself.

        with gradcheck_accum.watch(every=16):
            train(model, loader, optimizer)

    Weights, gradients and random numbers are not affected. The window before a checked one is watched too, but its
    gradients are read only for the first check, and if the loop changes gradients by hand; in between, the loop runs
    without overhead. The remainder at the end of the block is checked only if every window is.

    :param every: check every n-th window, counted by the steps of the optimizer that steps first; at least 1.
    :param on_deviation: what a wrong window causes after its step: ``"error"`` raises `AccumulationError` from
        ``optimizer.step()``, ``"warn"`` emits an `AccumulationWarning` at the line of the caller that trains, a
        function is called with the `VerifyResult` of the window and its causes.
    :param on_window: called with the result of every checked window, right or wrong; its ``metrics`` can be logged.
    :param reference: as in `check`; by default ``"ledger"``, or ``"sketch"`` for a model of more than 262,144 weights,
        so that no copy of a gradient is kept.
    :param loss_coefficient: as in `check`.
    :param rtol: as in `check`.
    :param atol: as in `check`.
    :param select: as in `check`.
    :param ignore: as in `check`.
    :raises AccumulationError: if a step does not match and ``on_deviation`` is ``"error"``.
    :raises ValueError: if ``every`` is less than 1, ``on_deviation`` is unknown, or only one of ``rtol`` and ``atol``
        is given.
    :raises SettingsError: if a code or a setting of the project is invalid.
    """
    if every < 1:
        raise ValueError("every must be a number of windows, at least 1")
    if not callable(on_deviation) and on_deviation not in ("error", "warn"):
        raise ValueError('on_deviation must be "error", "warn" or a function of the result')
    tell = _teller(on_deviation)
    options = Options(loss_coefficient, rtol, atol, replay_alone=reference == "replay")
    acceptance = acceptance_at(user_location().path, select=select, ignore=ignore)
    observer = SamplingObserver(every, options, tell, acceptance, on_window, wanted=Wanted(reference, usual="sketch"))
    with installed(observer):
        yield
        if every == 1:
            last = judge(observer, "the loop", observer.options, complete=True)
            left = tuple(d for d in last.diagnosis if not d.windows and d.mistake.changes_gradient)
            of_window = accepted(replace(last, windows=(), diagnosis=left), acceptance)
            if of_window.diagnosis:
                tell(of_window)


def _teller(on_deviation: OnDeviation) -> Callable[[VerifyResult], object]:
    if callable(on_deviation):
        return on_deviation
    given: dict[Any, Any] = {}

    def warn(result: VerifyResult) -> None:
        where = user_location()
        # Without the measured numbers, because Python shows a repeated warning only once.
        text = f"{result.verdict.value}: {_causes(result) or result.reason}"
        warnings.warn_explicit(text, AccumulationWarning, where.path, where.line, registry=given)

    def fail(result: VerifyResult) -> None:
        raise AccumulationError(result)

    return warn if on_deviation == "warn" else fail
