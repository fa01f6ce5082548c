"""The pytest door: ``--accum-lint`` lints what pytest collects, the fixture ``accum_check`` verifies a loop.

Loaded by every pytest run where this package is installed: nothing heavy may be imported at module level.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.outcomes import Failed

if TYPE_CHECKING:
    from types import ModuleType

    from _pytest._code.code import ExceptionInfo, TerminalRepr

    from gradcheck_accum.comparison import CompareResult
    from gradcheck_accum.findings import LintResult
    from gradcheck_accum.trials import LoopTrial
    from gradcheck_accum.verdict import VerifyResult
    from gradcheck_accum.verify.session import ReferenceName


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradcheck-accum")
    group.addoption(
        "--accum-lint",
        action="store_true",
        help="lint collected Python files for gradient accumulation mistakes; a file that is given by name and is "
        "no test module is then linted and not imported",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    collected = yield
    if not parent.config.getoption("accum_lint") or not _may_hold_a_loop(file_path):
        return collected
    if not _is_test_module(file_path, parent.config):
        # pytest imports every file that is named on its command line, and a training script trains when imported.
        collected = [node for node in collected if not isinstance(node, pytest.Module)]
    return [*collected, AccumLintFile.from_parent(parent, path=file_path)]


def _may_hold_a_loop(path: Path) -> bool:
    """Whether linting the file could find anything: cheap, because it is asked of every collected file."""
    from gradcheck_accum.gate import may_train_with_others

    if path.suffix != ".py":
        return False
    try:
        return may_train_with_others(path.read_bytes(), str(path))
    except OSError:
        return True  # the item will say why it cannot be read


def _is_test_module(path: Path, config: pytest.Config) -> bool:
    patterns: Iterable[str] = config.getini("python_files")
    return any(path.match(pattern) for pattern in patterns)


class AccumLintFile(pytest.File):
    """One Python file to lint."""

    def collect(self) -> Iterable[pytest.Item]:
        yield AccumLintItem.from_parent(self, name="accum-lint")


class AccumLintFailure(Exception):
    """The file has findings, or could not be analysed."""

    def __init__(self, result: LintResult) -> None:
        super().__init__(result)
        self.result = result


class AccumLintItem(pytest.Item):
    """Lints one file; fails with what was found."""

    def runtest(self) -> None:
        from gradcheck_accum.lint import lint_paths
        from gradcheck_accum.settings import SettingsError, settings_for

        paths = [str(self.path)]
        try:
            result = lint_paths(paths, settings_for(paths))
        except SettingsError as error:
            pytest.fail(str(error), pytrace=False)
        if result.exit_status:
            raise AccumLintFailure(result)

    def repr_failure(self, excinfo: ExceptionInfo[BaseException], style: Any = None) -> str | TerminalRepr:
        if not isinstance(excinfo.value, AccumLintFailure):
            return super().repr_failure(excinfo)
        from gradcheck_accum.report.lint_text import lint_text, unreadable_text

        result = excinfo.value.result
        return _writable(lint_text(result) if result.findings else "\n".join(unreadable_text(result)))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


class AccumFailure(Failed, AssertionError):
    """A loop is wrong, or could not be decided; ``result`` has the numbers and the causes.

    An AssertionError, as other checks that fail, which pytest shows as the report alone.
    """

    __module__ = "builtins"  # as pytest's own: its summary has no room for more than the name

    def __init__(self, report: str, result: VerifyResult | CompareResult | LoopTrial) -> None:
        super().__init__(_writable(report), pytrace=False)
        self.result = result


def _writable(report: str) -> str:
    """A report in the characters that pytest's terminal has: else pytest escapes its line ends too."""
    encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
    return report.encode(encoding, "backslashreplace").decode(encoding)


class AccumCheck:
    """Judges training loops; see the fixture ``accum_check``."""

    def __call__(
        self,
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
        """Call ``loop(*args, **kwargs)`` once, watching it; fail unless every step is right."""
        __tracebackhide__ = True
        from gradcheck_accum.report.verify_text import verify_text
        from gradcheck_accum.settings import SettingsError
        from gradcheck_accum.verify import checked

        try:
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
        except SettingsError as error:
            pytest.fail(str(error), pytrace=False)
        if result.exit_status:
            raise AccumFailure(verify_text(result), result)
        return result

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
    ) -> CompareResult:
        """Call ``loop`` with each configuration's arguments; fail unless all get the gradients of the largest batch.

        Each is called in a copy of this process, as `gradcheck_accum.compare` says.
        """
        __tracebackhide__ = True
        from gradcheck_accum.report.compare_text import compare_text
        from gradcheck_accum.side_by_side import compared_loop

        result = compared_loop(
            loop,
            configurations,
            free=free,
            no_dropout=no_dropout,
            loss_coefficient=loss_coefficient,
            rtol=rtol,
            atol=atol,
        )
        if result.exit_status:
            raise AccumFailure(compare_text(result), result)
        return result

    def fuzz(self, loop: Callable[..., object], /, *, factories: ModuleType | None = None) -> LoopTrial:
        """Call ``loop`` on drawn data, its arguments supplied by name; fail with the smallest case that is wrong.

        ``factories`` is a module whose functions supply the arguments of their names. How many cases there are is the
        active Hypothesis profile's to say.
        """
        __tracebackhide__ = True
        from gradcheck_accum.fuzz import fuzz_loop
        from gradcheck_accum.report.fuzz_text import loop_text

        target = f"{loop.__module__.replace('.', '/')}.py::{loop.__qualname__}"
        trial = fuzz_loop(loop, target=target, factories=factories)
        if trial.exit_status:
            raise AccumFailure(loop_text(trial), trial)
        return trial


@pytest.fixture(scope="session")
def accum_check() -> AccumCheck:
    """Run a training loop and fail unless every step's gradient is that of the true large batch.

    ``accum_check(loop, *args, **kwargs)`` calls ``loop(*args, **kwargs)`` once, watching it, and returns what was
    measured. ``loss_coefficient=`` is what the loss is meant to be multiplied by, where that cannot be told from the
    loop itself; ``reference=``, ``rtol=``, ``atol=``, ``select=`` and ``ignore=`` are those of
    `gradcheck_accum.check`, and what the project's settings or comments have accepted does not count. An argument
    ``accumulation_steps`` (or ``grad_accum_steps``, …) that the loop is given by name is K.
    ``accum_check.fuzz(loop)`` calls it on drawn data, and ``accum_check.compare(loop, [dict(...), dict(...)])`` with
    other batch sizes and K, side by side.
    """
    return AccumCheck()
