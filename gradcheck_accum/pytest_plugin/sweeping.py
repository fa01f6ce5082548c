"""Tests marked ``accum_sweep``: called at each K of a list, and compared with K = 1 on the same samples.

Arguments from fixtures are the same for both calls. Others are supplied as for `accum_check.fuzz`, by name: a loader,
for example, yields the same samples in micro-batches of the size that this K implies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from gradcheck_accum.pytest_plugin.checking import compared

if TYPE_CHECKING:
    from gradcheck_accum.fuzz import AccumCase

_COMPARES = ("no_dropout", "loss_coefficient", "rtol", "atol", "select", "ignore")
_OPTIONS = ("accumulation_steps", "effective_batch", "factories", *_COMPARES)
_ROWS = 3
"""Rows of the smallest micro-batch, if the marker does not set the size of the effective batch."""

_WHOLE_STEPS = 2
"""Steps on the whole effective batch, before one on a remainder."""


@dataclass(frozen=True, slots=True)
class _AtStepsOf:
    """Placeholder for an argument that no fixture supplies, until the test is called at this K."""

    accumulation_steps: int


@dataclass(frozen=True, slots=True)
class _Sweep:
    """The options of a marker."""

    steps: Sequence[int]
    effective_batch: int
    factories: Any
    options: dict[str, Any]

    @classmethod
    def of(cls, marker: pytest.Mark) -> _Sweep:
        """The sweep of a marker; fails the test, or its collection, if the marker is invalid."""
        given = dict(marker.kwargs)
        unknown = sorted(set(given) - set(_OPTIONS))
        if unknown or marker.args:
            wrong = f"no option {unknown[0]!r}" if unknown else "options by name only"
            _refuse(f"takes {wrong} (options: {', '.join(_OPTIONS)})")
        steps = given.pop("accumulation_steps", None)
        if not isinstance(steps, (list, tuple, range)) or not all(map(_is_count, steps)) or not {*steps} - {1}:
            _refuse("takes accumulation_steps=[...]: whole numbers, one of them 2 or more")
        every = sorted({*steps, 1})
        batch = given.pop("effective_batch", math.lcm(*every) * _ROWS)
        if not _is_count(batch) or any(batch % k for k in every):
            _refuse(f"cannot split an effective_batch of {batch!r} into K equal micro-batches for every K")
        return cls(every, batch, given.pop("factories", None), given)

    def case(self, steps: int) -> AccumCase:
        """All samples, in micro-batches for this K.

        The remainder is one micro-batch, of the same size for every K, so that a loop which divides by the number of
        its micro-batches does not compute a mean of means.
        """
        from gradcheck_accum.fuzz import AccumCase

        rest = self.effective_batch // self.steps[-1]
        return AccumCase(
            samples=_WHOLE_STEPS * self.effective_batch + rest,
            batch_size=self.effective_batch // steps,
            accumulation_steps=steps,
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _refuse(why: str) -> NoReturn:
    pytest.fail(f"@pytest.mark.accum_sweep {why}", pytrace=False)


def at_each_steps(metafunc: pytest.Metafunc, marker: pytest.Mark) -> None:
    """Parametrize a marked test with each K except 1."""
    sweep = _Sweep.of(marker)
    info = metafunc.definition._fixtureinfo
    missing = [name for name in info.argnames if name not in info.name2fixturedefs]
    if not missing:
        _refuse(
            "supplies arguments that no fixture provides, but every argument of this test is a fixture: K has to be an "
            "argument"
        )
    values = [[_AtStepsOf(k)] * len(missing) for k in sweep.steps if k > 1]
    metafunc.parametrize(missing, values, ids=[f"K={k}" for k in sweep.steps if k > 1])


@contextmanager
def swept(test: pytest.Function, marker: pytest.Mark) -> Iterator[None]:
    """Inside the block, calling the test compares it with itself at K = 1."""
    if test.get_closest_marker("accum") is not None:
        pytest.fail(
            "a test is marked accum_sweep or accum, not both: accum_sweep trains in other processes", pytrace=False
        )
    sweep, body = _Sweep.of(marker), test.obj

    def called(**given: object) -> None:
        __tracebackhide__ = True
        shared = {name: value for name, value in given.items() if not isinstance(value, _AtStepsOf)}
        steps = next(value.accumulation_steps for value in given.values() if isinstance(value, _AtStepsOf))
        _compare(test.config, body, sweep, steps, shared)

    test.obj = called
    try:
        yield
    finally:
        test.obj = body


def _compare(config: pytest.Config, body: Any, sweep: _Sweep, steps: int, shared: dict[str, object]) -> None:
    __tracebackhide__ = True
    from gradcheck_accum.fuzz import CannotSupply

    try:
        each = [sweep.case(k).arguments(body, sweep.factories, shared) for k in (steps, 1)]
        compared(config, body, each, **sweep.options)
    except (CannotSupply, ValueError) as error:
        raise pytest.fail.Exception(f"@pytest.mark.accum_sweep: {error}", pytrace=False) from None
