"""Watching inside a user's own program: window by window, or one window in many, while training goes on."""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from torch.optim.optimizer import Optimizer

from gradcheck_accum.accepting import accepted
from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.engine.reference import ReferenceEngine
from gradcheck_accum.verdict import Verdict, VerifyResult
from gradcheck_accum.verify.frames import user_location
from gradcheck_accum.verify.holding import Wanted
from gradcheck_accum.verify.judge import judge
from gradcheck_accum.verify.observer import Watch
from gradcheck_accum.verify.ruling import Options
from gradcheck_accum.verify.session import ReferenceName, acceptance_at, checked, installed

_KEPT_WINDOWS = 8
"""Windows that the ledger looks back on: enough to know K, and no more to keep than a training run can spare."""


OnDeviation = Literal["error", "warn"] | Callable[[VerifyResult], object]
"""What a wrong step comes to: an `AccumulationError`, an `AccumulationWarning`, or a call of the user's."""


class AccumulationWarning(UserWarning):
    """A step got another gradient than the large batch's, and training goes on."""


class AccumulationError(AssertionError):
    """A step got another gradient than the large batch's; ``result`` has the numbers and the causes."""

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

    ``loss_coefficient`` is what the loss is meant to be multiplied by, where the loop cannot tell; an argument of the
    loop's that is given as ``accumulation_steps``, or by another usual name of K, tells K. ``rtol`` and ``atol`` (given
    both or neither) replace the derived tolerance. What the project has accepted does not count: ``select`` and
    ``ignore`` stand in the place of those of its settings, and comments at the diagnosed lines count too. Returns the
    result where every step is right, raises `AccumulationError` where it is not or could not be decided, TypeError
    where an argument of the loop's is called as one of these, SettingsError where a setting makes no sense, and
    whatever the loop raises.
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


class Watching(Watch):
    """A watch that judges windows as they are closed, every n-th of them, and sleeps between.

    A window is judged by what came before it (what is stale, what K is), so the one before is watched as well. Windows
    are counted by the steps of the optimizer that steps first.
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
        self._asleep = every > 2
        self._steps_awake: Counter[int] = Counter()
        self._leader: weakref.ref[Optimizer] | None = None

    @property
    def idle(self) -> bool:
        """Whether what happens now is not the loop's, or in a window that is not asked for."""
        return self._asleep or super().idle

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """An optimizer has been made, or has got more parameters: to be known when we wake."""
        asleep, self._asleep = self._asleep, False
        super().optimizer_made(optimizer)
        self._asleep = asleep

    def after_step(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` has returned."""
        if super().idle:
            return
        if not self._asleep:
            seen = len(self.measured)
            super().after_step(optimizer)
            self._steps_awake[id(optimizer)] += 1
            # The first window of another optimizer may have begun while we slept.
            complete = self._every == 1 or self._steps_awake[id(optimizer)] > 1
            if complete and len(self.measured) > seen and self._window % self._every == self._every - 1:
                self._judge()
        self._leader = self._leader or weakref.ref(optimizer)
        if self._leader() is optimizer:
            self._window += 1
            self._turn()

    def _turn(self) -> None:
        """Fall asleep after a window that was judged, wake for the one before the next."""
        asleep = self._every > 2 and self._window % self._every < self._every - 2
        if self._asleep and not asleep:
            self.listen()
            self.restart()
            self._steps_awake.clear()
        elif asleep:
            self.release()
            self.book.forget()
        self._asleep = asleep

    def _judge(self) -> None:
        result = judge(self, "the loop", self.options, complete=False)
        last = result.windows[-1]
        shown = tuple(d for d in result.diagnosis if last.index in d.windows or not d.mistake.moves_gradient)
        self.forget_before(_KEPT_WINDOWS)
        told = replace(result, reason=last.reason or result.reason, windows=(last,), diagnosis=shown)
        told = accepted(told, self._acceptance)
        if self._on_window is not None:
            self._on_window(told)
        deviates = any(w.verdict is Verdict.DEVIATES and not w.accepted for w in told.windows)
        if deviates or any(not d.mistake.by_construction for d in told.diagnosis):
            self._tell(told)


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
    """Watch the training loop in the block, and say at the step itself where its gradient is wrong.

        with gradcheck_accum.watch(every=16):
            train(model, loader, optimizer)

    Every ``every``-th window is judged (and the one before it watched, to judge it by); between them the loop runs as
    it is. Where its gradient is wrong, ``on_deviation`` says what happens after the step: `AccumulationError` is
    raised from ``optimizer.step()`` ("error"), `AccumulationWarning` is given at the user's line ("warn"), or it is
    called with the result for the one window and its causes. ``on_window`` is called with the result for every window
    that is judged, right or wrong; its `metrics` are what a tracker can log. What is left over when the block ends is
    judged where every window is. ``reference`` is by default the sum of the micro-batches' own gradients: of a model
    of more than 262,144 weights their sketches, so that no copy of a gradient is kept. ``select``, ``ignore``, settings
    and comments count as in `check`. Raises ValueError for options that do not fit, and SettingsError.
    """
    if every < 1:
        raise ValueError("every is a number of windows, at least 1")
    if not callable(on_deviation) and on_deviation not in ("error", "warn"):
        raise ValueError('on_deviation is "error", "warn", or is called with the result')
    tell = _teller(on_deviation)
    options = Options(loss_coefficient, rtol, atol, replay_alone=reference == "replay")
    acceptance = acceptance_at(user_location().path, select=select, ignore=ignore)
    watching = Watching(every, options, tell, acceptance, on_window, wanted=Wanted(reference, usual="sketch"))
    with installed(watching):
        yield
        if every == 1:
            last = judge(watching, "the loop", watching.options, complete=True)
            left = tuple(d for d in last.diagnosis if not d.windows and d.mistake.moves_gradient)
            told = accepted(replace(last, windows=(), diagnosis=left), acceptance)
            if told.diagnosis:
                tell(told)


def _teller(on_deviation: OnDeviation) -> Callable[[VerifyResult], object]:
    if callable(on_deviation):
        return on_deviation
    given: dict[Any, Any] = {}

    def warn(result: VerifyResult) -> None:
        where = user_location()
        # Without what was measured: Python shows a warning of the same words once.
        text = f"{result.verdict.value}: {_causes(result) or result.reason}"
        warnings.warn_explicit(text, AccumulationWarning, where.path, where.line, registry=given)

    def fail(result: VerifyResult) -> None:
        raise AccumulationError(result)

    return warn if on_deviation == "warn" else fail
