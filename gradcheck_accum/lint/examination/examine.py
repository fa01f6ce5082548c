"""Examines one source: its loops are interpreted, and findings are kept unless a comment suppresses them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.examination.collecting import without_collecting
from gradcheck_accum.lint.examination.document import LintError, decode
from gradcheck_accum.lint.examination.outcome import Outcome
from gradcheck_accum.results.findings import Finding, UnusedSuppression
from gradcheck_accum.sources.prefilter import may_train, may_train_with_others
from gradcheck_accum.sources.suppressions import MAY_NAME_CODES, Commented
from gradcheck_accum.wording import message

if TYPE_CHECKING:
    from gradcheck_accum.diagnosis import Diagnosis
    from gradcheck_accum.ledger.windows import Ledger
    from gradcheck_accum.lint.examination.scenario import Scenario
    from gradcheck_accum.lint.program.imported_modules import ImportedModules

_LINE_BREAK = re.compile(r"\r\n|\r|\n")

_MODULE = ".py"

_BYTES_AS_AN_EVALUATION = 8
"""How many bytes take about as long to parse as one evaluation."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The complete result for one source: each finding with a ledger that shows it, and the scenarios.

    ``is_thorough`` says whether all scenarios were run, even those that could not add a finding; ``not_followed``
    counts the loops that exceeded the budget, and ``cost`` all evaluations.
    """

    evidence: tuple[tuple[Finding, Ledger], ...] = ()
    suppressed: tuple[str, ...] = ()
    unused: tuple[UnusedSuppression, ...] = ()
    scenarios: tuple[Scenario, ...] = ()
    is_thorough: bool = True
    not_followed: int = 0
    cost: int = 0
    read: tuple[tuple[str, str], ...] = ()
    """The other files that were read, each with a digest (`gradcheck_accum.lint.program.imported_modules`)."""
    unread: tuple[str, ...] = ()
    """The files that its budget left unread."""
    module: syntax.Module | None = field(default=None, repr=False, compare=False)
    """What was read; None where a source was only checked for syntax errors."""

    def outcome(self) -> Outcome:
        """The part of it that is reported."""
        findings = tuple(finding for finding, _ in self.evidence)
        return Outcome(
            findings,
            self.suppressed,
            self.unused,
            not_followed=self.not_followed,
            read=self.read,
            unread=self.unread,
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """What an examination knows before it is complete: the scenarios so far, and what they have cost."""

    scenarios: list[Scenario]
    cost: int


def examine(
    text: str, path: str, words: Callable[[int], str] = "line {}".format, *, thorough: bool = False
) -> Examination:
    """Read one source; ``words`` describes one of its lines. Raises LintError as `lint_source` does.

    ``thorough`` runs every scenario, even those that could not add a finding.
    """
    examining = examine_in_steps(text, path, words, thorough=thorough)
    while True:
        try:
            next(examining)
        except StopIteration as complete:
            return complete.value  # type: ignore[no-any-return]


def examine_in_steps(
    text: str, path: str, words: Callable[[int], str] = "line {}".format, *, thorough: bool = False
) -> Generator[Progress, None, Examination]:
    """The same, scenario by scenario: whoever has seen enough need not go on."""
    content = text.encode(errors="surrogatepass")
    # Without both calls, there is no loop: the source is only checked for syntax errors.
    trains = may_train_with_others(content, path) if path.endswith(_MODULE) else may_train(content)
    module = _parse(text, path, words) if trains or MAY_NAME_CODES.search(content) else None
    if module is None:
        _check(text, words)
    is_thorough, not_followed, cost = True, 0, len(content) // _BYTES_AS_AN_EVALUATION
    found: dict[tuple[str, int], tuple[Diagnosis, Ledger]] = {}
    every: list[Scenario] = []
    lines = _LINE_BREAK.split(text)
    modules: ImportedModules | None = None
    try:
        if trains and module is not None:
            from gradcheck_accum.lint.examination import scenarios  # the interpreter, which most files do not need
            from gradcheck_accum.lint.program.facts import Facts
            from gradcheck_accum.lint.program.imported_modules import ImportedModules, follow_imports

            with without_collecting():
                facts = Facts(module)
                modules = follow_imports(facts, path) if path.endswith(_MODULE) else ImportedModules(path)
            for explored in scenarios.explore(facts, modules, thorough=thorough):
                if not explored.is_complete:
                    yield Progress([*every, *explored.scenarios], cost + explored.spent)
                    continue
                every += explored.scenarios
                is_thorough = is_thorough and explored.is_thorough
                not_followed += not explored.is_followed
                cost += explored.spent
                for diagnosis, ledger in (*scenarios.agreed(explored), *explored.interrupted):
                    found.setdefault((diagnosis.mistake.code, diagnosis.where.line), (diagnosis, ledger))
    except RecursionError:
        raise LintError("nested too deeply to be analyzed") from None
    read, unread = (tuple(modules.read.items()), tuple(modules.unread)) if modules else ((), ())
    if module is None or not (found or module.comments):
        return Examination((), (), (), tuple(every), is_thorough, not_followed, cost, read, unread, module)
    own = _CommentedSource(module, lines)
    files = {path: own}
    kept: list[tuple[Finding, Ledger]] = []
    suppressed: list[str] = []
    for diagnosis, ledger in sorted(found.values(), key=lambda item: (item[0].where, item[0].mistake.code)):
        placed = modules.placed(diagnosis) if modules else diagnosis
        where = placed.where
        if modules and where.path not in files:
            theirs = modules.text_of(where.path)
            files[where.path] = _CommentedSource(_parse(theirs, where.path), _LINE_BREAK.split(theirs))
        if files[where.path].hides(placed):
            suppressed.append(placed.mistake.code)
        else:
            said = message(placed.said, _assumption(placed, ledger))
            shown = files[where.path].lines[where.line - 1].strip()
            kept.append((Finding(placed.mistake, where, said, placed.help, text=shown, likely=placed.likely), ledger))
    unused = tuple(
        UnusedSuppression(Location(path, comment.line, comment.column, comment.line, comment.end_column), useless)
        for comment, useless in own.comments.unused()
    )
    return Examination(
        tuple(kept), tuple(suppressed), unused, tuple(every), is_thorough, not_followed, cost, read, unread, module
    )


class _CommentedSource:
    """A source with findings in it."""

    def __init__(self, module: syntax.Module, lines: list[str]) -> None:
        self.lines = lines
        comments = ((comment.where.line, comment.where.column, comment.text) for comment in module.comments)
        self._source = Commented(comments, partial(syntax.statement_lines, module))
        self.comments = self._source.comments

    def hides(self, diagnosis: Diagnosis) -> bool:
        """Whether a comment suppresses this diagnosis."""
        return self._source.hides(diagnosis.mistake, diagnosis.where)


def _assumption(diagnosis: Diagnosis, ledger: Ledger) -> str:
    """In words, the assumption behind the numbers of a message; empty if it states none."""
    if not diagnosis.states_steps:
        return ""
    assumed = " and ".join(f"{name} as {value}" for name, value in ledger.trace.assumed_steps)
    return f" (taking {assumed})" if assumed else ""


def ledgers_of(source: str | bytes, path: str) -> list[Ledger]:
    """The ledger of every scenario of every loop in ``source``; raises LintError as `lint_source` does."""
    text = decode(source)
    module = _parse(text, path)
    from gradcheck_accum.lint.examination import scenarios
    from gradcheck_accum.lint.program.facts import Facts
    from gradcheck_accum.lint.program.imported_modules import ImportedModules

    explored = scenarios.explore(Facts(module), ImportedModules(path))
    return [scenario.ledger for one in explored if one.is_complete for scenario in one.scenarios]


def _parse(text: str, path: str, words: Callable[[int], str] = "line {}".format) -> syntax.Module:
    with _refusals(words), without_collecting():
        return syntax.parse(text, path)


def _check(text: str, words: Callable[[int], str]) -> None:
    with _refusals(words):
        syntax.check(text)


@contextmanager
def _refusals(words: Callable[[int], str]) -> Iterator[None]:
    """Raise LintError with a one-line reason if a source cannot be read; ``words`` describes one of its lines."""
    try:
        yield
    except syntax.CannotParse as error:
        where = f" ({words(error.line)})" if error.line else ""
        raise LintError(f"LibCST cannot read it{where}" if error.is_python else _not_valid(where, str(error))) from None
    except syntax.NestedTooDeeply:
        raise LintError("nested too deeply to be analyzed") from None


def _not_valid(where: str, why: str) -> str:
    """In words, that a source could not be parsed; a newer Python may accept it."""
    return f"not valid Python {sys.version_info[0]}.{sys.version_info[1]}{where}: {why}"
