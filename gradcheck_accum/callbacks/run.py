"""One watched run of a framework's training, started and ended by its callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TypedDict

from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.verify import AccumulationError, OnDeviation, watch
from gradcheck_accum.verify.session import ReferenceName


class WatchOptions(TypedDict, total=False):
    """The options of `gradcheck_accum.watch`, which every callback accepts too."""

    on_window: Callable[[VerifyResult], object] | None
    reference: ReferenceName
    loss_coefficient: float | None
    rtol: float | None
    atol: float | None
    select: Iterable[str] | None
    ignore: Iterable[str] | None


class _Abandoned(Exception):
    """The run did not end by itself: the loop has not lost what is left over."""


class WatchedRun:
    """Watches from `begin` to `end`; `metrics` returns those of the window judged since the last call.

    A run that breaks off is abandoned: its remainder is not judged. A second `begin` abandons the previous run, and so
    does garbage collection.
    """

    def __init__(self, every: int, on_deviation: OnDeviation, options: WatchOptions) -> None:
        if every < 1:
            raise ValueError("every must be a number of windows, at least 1")
        self._every = every
        self._on_deviation = self._failed if on_deviation == "error" else on_deviation
        self._options = options
        self._watch: AbstractContextManager[None] | None = None
        self._metrics: dict[str, float] = {}

    def begin(self) -> None:
        """Training begins."""
        self.abandon()
        options = self._options.copy()
        options["on_window"] = self._judged
        self._watch = watch(every=self._every, on_deviation=self._on_deviation, **options)
        self._watch.__enter__()

    def end(self) -> None:
        """Training has ended."""
        watching, self._watch = self._watch, None
        if watching is not None:
            watching.__exit__(None, None, None)

    def abandon(self) -> None:
        """Training was interrupted, or its end is unknown."""
        watching, self._watch = self._watch, None
        self._metrics = {}
        if watching is not None:
            watching.__exit__(_Abandoned, _Abandoned(), None)

    def metrics(self) -> dict[str, float]:
        """The metrics of the window judged since the last call; empty if there was none."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    def _failed(self, result: VerifyResult) -> None:
        # Raising ends the training, and not every framework reports that.
        self.abandon()
        raise AccumulationError(result)

    def _judged(self, result: VerifyResult) -> None:
        self._metrics = result.metrics
        told = self._options.get("on_window")
        if told is not None:
            told(result)
