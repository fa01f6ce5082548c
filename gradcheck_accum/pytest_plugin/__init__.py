"""The pytest plugin: lints files, runs scripts under verify, and checks the loops of tests.

Loaded by every pytest run where this package is installed: nothing heavy may be imported at module level, and what runs
for every test or file must be cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gradcheck_accum.pytest_plugin.checking import AccumCheck
    from gradcheck_accum.pytest_plugin.scripts import Scripts

_SCRIPTS: pytest.StashKey[Scripts] = pytest.StashKey()
_LINTS = pytest.StashKey[bool]()

_SUMMARY = "accum_summary"
"""The attribute of a test's report with its lines of the summary, as strings that pytest-xdist can send."""

_MARKERS = (
    "accum(reference=, loss_coefficient=, rtol=, atol=, select=, ignore=): verify every step that the test takes; if "
    "it uses the fixture accum_check, these are options of that check instead",
    "accum_sweep(accumulation_steps=, effective_batch=, factories=, ...): run the test with each K and compare it with "
    "itself at K = 1",
    "accum_lint: files that --accum-lint lints",
    "accum_verify: scripts that --accum-verify runs",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradcheck-accum")
    group.addoption(
        "--accum-lint",
        action="store_true",
        help="lint collected Python files for gradient accumulation mistakes; a file that is given by name and is not "
        "a test module is linted, not imported",
    )
    group.addoption(
        "--accum-verify",
        action="append",
        metavar="SCRIPT",
        help="run a training script under verify as a test, with its arguments in the same string "
        "('train.py --epochs 1'); can be repeated",
    )
    parser.addini("accum_lint", "lint collected Python files, as with --accum-lint", type="bool", default=False)
    parser.addini(
        "accum_verify",
        "scripts with their arguments, one per line, to run under verify if no paths are given or a path contains them",
        type="linelist",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[_LINTS] = config.getoption("accum_lint") or config.getini("accum_lint")
    if config.getoption("accum_verify") or config.getini("accum_verify"):
        from gradcheck_accum.pytest_plugin.scripts import Scripts

        config.stash[_SCRIPTS] = Scripts.of(config)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    collected = yield
    stash = parent.config.stash
    if not stash[_LINTS] and _SCRIPTS not in stash:
        return collected
    own: list[pytest.Collector] = []
    if stash[_LINTS]:
        from gradcheck_accum.pytest_plugin.linting import lint_file

        own += lint_file(file_path, parent)
    if _SCRIPTS in stash:
        own += stash[_SCRIPTS].files(file_path, parent)
    if own and not any(file_path.match(pattern) for pattern in parent.config.getini("python_files")):
        # pytest imports every file that is named on its command line, and importing a training script trains.
        collected = [node for node in collected if not isinstance(node, pytest.Module)]
    return [*collected, *own]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:  # first: what is added can be deselected as all else
    if _SCRIPTS in config.stash:
        items += config.stash[_SCRIPTS].missing(session, items)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:  # last: what a test is parametrized with is not supplied
    marker = metafunc.definition.get_closest_marker("accum_sweep")
    if marker is not None:
        from gradcheck_accum.pytest_plugin.sweeping import at_each_steps

        at_each_steps(metafunc, marker)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    sweep = pyfuncitem.get_closest_marker("accum_sweep")
    if sweep is not None:
        from gradcheck_accum.pytest_plugin.sweeping import swept

        with swept(pyfuncitem, sweep):
            return (yield)
    marker = pyfuncitem.get_closest_marker("accum")
    if marker is None:
        return (yield)
    from gradcheck_accum.pytest_plugin.checking import as_marked

    with as_marked(pyfuncitem, marker):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call" and "gradcheck_accum.results.verdict" in sys.modules:
        from gradcheck_accum.pytest_plugin.summary import lines_of

        if lines := lines_of(report, item, call):
            setattr(report, _SUMMARY, lines)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        line
        for reports in terminalreporter.stats.values()
        for report in reports
        for line in getattr(report, _SUMMARY, ())
    ]
    if lines:
        terminalreporter.section("gradient accumulation")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def accum_check(pytestconfig: pytest.Config) -> AccumCheck:
    """Run a training loop and fail unless the gradient of every step matches the large batch.

    ``accum_check(loop, *args, **kwargs)`` calls ``loop(*args, **kwargs)`` once and returns the result. The options
    ``loss_coefficient=``, ``reference=``, ``rtol=``, ``atol=``, ``select=`` and ``ignore=`` are those of
    `gradcheck_accum.check`, and by default those of the test's ``@pytest.mark.accum(...)``. An argument
    ``accumulation_steps`` (or ``grad_accum_steps``, …) of the loop states K. ``accum_check.fuzz(loop)`` calls the loop
    on generated data, and ``accum_check.compare(loop, [dict(...), dict(...)])`` in several configurations of batch size
    and K. All of them raise AssertionErrors whose ``result`` has the numbers.
    """
    from gradcheck_accum.pytest_plugin.checking import AccumCheck

    return AccumCheck(pytestconfig)
