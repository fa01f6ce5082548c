"""Groups windows with the same numbers, so that a report on very many of them lists every kind, and is short."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradcheck_accum.report.words import number, weights
from gradcheck_accum.results.verdict import WindowReport


def kinds(windows: Sequence[WindowReport], most: int) -> list[list[WindowReport]]:
    """The windows by all that a reader would act on, in the order of the first of each kind.

    Where that makes more than ``most`` kinds (every window of a loop may hold other units), their numbers are left out.
    """
    found = _by(_in_numbers, windows)
    return found if len(found) <= most else _by(_in_words, windows)


def _by(key: Callable[[WindowReport], tuple[object, ...]], windows: Sequence[WindowReport]) -> list[list[WindowReport]]:
    alike: dict[tuple[object, ...], list[WindowReport]] = {}
    for window in windows:
        alike.setdefault(key(window), []).append(window)
    return list(alike.values())


def _in_numbers(window: WindowReport) -> tuple[object, ...]:
    numbers = window.micro_batches, weights(window.weights), number(window.grad_norm_ratio)
    return (*_in_words(window), *numbers)


def _in_words(window: WindowReport) -> tuple[object, ...]:
    known = all(weight is not None for weight in window.weights)
    even = len({number(weight) for weight in window.weights}) < 2
    return window.optimizer, window.path, window.line, window.verdict, window.accepted, known, even
