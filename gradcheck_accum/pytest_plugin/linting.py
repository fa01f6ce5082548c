"""Files as tests: each is linted, and fails if there are findings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gradcheck_accum.pytest_plugin.failing import writable
from gradcheck_accum.sources.prefilter import may_train_with_others

if TYPE_CHECKING:
    from _pytest._code.code import ExceptionInfo, TerminalRepr

    from gradcheck_accum.results.findings import LintResult


def lint_file(path: Path, parent: pytest.Collector) -> list[pytest.Collector]:
    """The file as one to lint, unless linting could not find anything in it."""
    return [AccumLintFile.from_parent(parent, path=path)] if _may_hold_a_loop(path) else []


def _may_hold_a_loop(path: Path) -> bool:
    """Whether linting the file could find anything; cheap, because it runs for every collected file."""
    if path.suffix != ".py":
        return False
    try:
        return may_train_with_others(path.read_bytes(), str(path))
    except OSError:
        return True  # the item will report why it cannot be read


class AccumLintFile(pytest.File):
    """One Python file to lint."""

    def collect(self) -> Iterable[pytest.Item]:
        item = AccumLintItem.from_parent(self, name="accum-lint")
        item.add_marker("accum_lint")
        yield item


class AccumLintFailure(Exception):
    """The file has findings, or could not be analyzed."""

    def __init__(self, result: LintResult) -> None:
        super().__init__(result)
        self.result = result


class AccumLintItem(pytest.Item):
    """Lints one file; fails if there are findings."""

    def runtest(self) -> None:
        from gradcheck_accum.lint import lint_paths
        from gradcheck_accum.settings import SettingsError, settings_for

        paths = [str(self.path)]
        try:
            result = lint_paths(paths, settings_for(paths))
        except SettingsError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        if result.exit_status:
            raise AccumLintFailure(result)

    def repr_failure(self, excinfo: ExceptionInfo[BaseException], style: Any = None) -> str | TerminalRepr:
        if not isinstance(excinfo.value, AccumLintFailure):
            return super().repr_failure(excinfo)
        from gradcheck_accum.report.lint_text import lint_text, unreadable_text

        result = excinfo.value.result
        return writable(lint_text(result) if result.findings else "\n".join(unreadable_text(result)))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name
