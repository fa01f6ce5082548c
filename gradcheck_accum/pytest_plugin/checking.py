"""Loops that tests check: the fixture ``accum_check``, and tests marked ``accum``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gradcheck_accum.pytest_plugin.failing import AccumFailure
from gradcheck_accum.pytest_plugin.summary import remember

if TYPE_CHECKING:
    from types import ModuleType

    from gradcheck_accum.results.comparison import CompareResult
    from gradcheck_accum.results.fuzzing import LoopTrial
    from gradcheck_accum.results.verdict import VerifyResult
    from gradcheck_accum.verify.session import ReferenceName

_OPTIONS = ("reference", "loss_coefficient", "rtol", "atol", "select", "ignore")


class AccumCheck:
    """Checks training loops; see the fixture ``accum_check``."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._marked: Mapping[str, Any] = {}

    def __call__(
        self,
        loop: Callable[..., object],
        /,
        *args: object,
        reference: ReferenceName | None = None,
        loss_coefficient: float | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        select: Iterable[str] | None = None,
        ignore: Iterable[str] | None = None,
        **kwargs: object,
    ) -> VerifyResult:
        """Call ``loop(*args, **kwargs)`` once and fail unless every step matches the large batch.

        The parameters are those of `gradcheck_accum.check`; options that are not given are those of the test's marker.

        :returns: the result, if every step matches.
        :raises AccumFailure: if a step does not match, or could not be checked (an AssertionError with the report).
        :raises pytest.fail.Exception: if a code or a setting of the project is invalid.
        """
        __tracebackhide__ = True
        from gradcheck_accum.settings import SettingsError
        from gradcheck_accum.verify import checked

        values = (reference, loss_coefficient, rtol, atol, select, ignore)
        given = {name: value for name, value in zip(_OPTIONS, values, strict=True) if value is not None}
        options: dict[str, Any] = {"reference": "both", "select": None, "ignore": None, **self._marked, **given}
        try:
            result = checked(loop, args, kwargs, **options)
        except SettingsError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        return _passed(self._config, result)

    def compare(
        self,
        loop: Callable[..., object],
        configurations: Sequence[Mapping[str, object]],
        *,
        free: bool = False,
        no_dropout: bool = False,
        loss_coefficient: float | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        select: Iterable[str] | None = None,
        ignore: Iterable[str] | None = None,
    ) -> CompareResult:
        """Call ``loop`` with each configuration's arguments and fail unless all steps match those of the largest batch.

        The parameters are those of `gradcheck_accum.compare`; options that are not given are those of the test's
        marker.

        :returns: the result, if every step matches.
        :raises AccumFailure: if a step does not match, or could not be checked (an AssertionError with the report).
        """
        __tracebackhide__ = True
        values = (None, loss_coefficient, rtol, atol, select, ignore)
        given = {name: value for name, value in zip(_OPTIONS, values, strict=True) if value is not None}
        options = {name: value for name, value in {**self._marked, **given}.items() if name != "reference"}
        return compared(self._config, loop, configurations, free=free, no_dropout=no_dropout, **options)

    def fuzz(self, loop: Callable[..., object], /, *, factories: ModuleType | None = None) -> LoopTrial:
        """Call ``loop`` on generated data and fail with the smallest case that is wrong.

        The number of cases is that of the active Hypothesis profile.

        :param loop: the training loop; its arguments are supplied by name (docs/fuzz.md).
        :param factories: a module whose functions supply the arguments of the same names.
        :returns: the trial, if every case is right.
        :raises AccumFailure: if a case is wrong or undecided (an AssertionError with the report).
        """
        __tracebackhide__ = True
        from gradcheck_accum.fuzz import fuzz_loop
        from gradcheck_accum.report.fuzz_text import loop_text

        target = f"{loop.__module__.replace('.', '/')}.py::{loop.__qualname__}"
        trial = fuzz_loop(loop, target=target, factories=factories)
        if trial.exit_status:
            raise AccumFailure(loop_text(trial), trial)
        return trial

    @contextmanager
    def marked(self, options: Mapping[str, Any]) -> Iterator[None]:
        """Inside the block, ``options`` are the defaults of every call."""
        before, self._marked = self._marked, options
        try:
            yield
        finally:
            self._marked = before


def compared(
    config: pytest.Config, loop: Callable[..., object], configurations: Sequence[Mapping[str, object]], **options: Any
) -> CompareResult:
    """The result of `gradcheck_accum.compare` if all is right. Raises AccumFailure otherwise."""
    __tracebackhide__ = True
    from gradcheck_accum.comparing import compared_loop
    from gradcheck_accum.report.compare_text import compare_text
    from gradcheck_accum.settings import SettingsError

    try:
        result = compared_loop(loop, configurations, **options)
    except SettingsError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    remember(config, [accepted for one in result.compared for accepted in one.accepted])
    if result.exit_status:
        raise AccumFailure(compare_text(result), result)
    return result


def as_marked(test: pytest.Function, marker: pytest.Mark) -> AbstractContextManager[None]:
    """The context in which a test marked ``accum`` runs.

    The marker says how training is judged: what the test passes to ``accum_check`` if it uses that fixture, and
    otherwise all that the test does itself.
    """
    unknown = sorted(set(marker.kwargs) - set(_OPTIONS))
    if unknown or marker.args:
        wrong = f"no option {unknown[0]!r}" if unknown else "options by name only"
        pytest.fail(f"@pytest.mark.accum takes {wrong} (options: {', '.join(_OPTIONS)})", pytrace=False)
    check = test.funcargs.get("accum_check")
    return check.marked(marker.kwargs) if isinstance(check, AccumCheck) else _watched(test, marker.kwargs)


@contextmanager
def _watched(test: pytest.Function, given: Mapping[str, Any]) -> Iterator[None]:
    """Judge a test's own training once the test has finished."""
    from gradcheck_accum.ledger.stated_names import stated_steps
    from gradcheck_accum.results.acceptance import accepted
    from gradcheck_accum.settings import SettingsError
    from gradcheck_accum.verify import observe
    from gradcheck_accum.verify.session import acceptance_at

    options = dict(given)
    select, ignore = options.pop("select", None), options.pop("ignore", None)
    with ExitStack() as stack:
        try:
            acceptance = acceptance_at(str(test.path), select=select, ignore=ignore)
            watching = observe(script=test.name, accumulation_steps=stated_steps(test.funcargs), **options)
            observation = stack.enter_context(watching)
        except (SettingsError, ValueError) as error:
            raise pytest.fail.Exception(f"@pytest.mark.accum: {error}", pytrace=False) from None
        yield
    _passed(test.config, accepted(observation.result(), acceptance))


def _passed(config: pytest.Config, result: VerifyResult) -> VerifyResult:
    """The result if every step is right. Raises AccumFailure otherwise."""
    __tracebackhide__ = True
    from gradcheck_accum.report.verify_text import verify_text

    remember(config, result.accepted)
    if result.exit_status:
        raise AccumFailure(verify_text(result), result)
    return result
