"""``gradcheck-accum lint``: its options, and what they do."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gradcheck_accum import output, streams
from gradcheck_accum.cli.arguments import add_codes, positive_int
from gradcheck_accum.cli.status import ERROR, FOUND, OK, PROGRAM, settings_are_usage
from gradcheck_accum.errors import UsageError

if TYPE_CHECKING:
    from gradcheck_accum.results.findings import LintResult
    from gradcheck_accum.settings import Settings


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("paths", metavar="PATH", nargs="*", help="files and directories (default: .); - is stdin")
    add_codes(parser, "report only these codes or prefixes (GA101,GA2)", "do not report these codes or prefixes")
    parser.add_argument("--fix", action="store_true", help="apply safe fixes in place; see --unsafe-fixes")
    parser.add_argument(
        "--unsafe-fixes", action="store_true", help="with --fix or --diff, also fixes that may change other behavior"
    )
    parser.add_argument("--diff", action="store_true", help="show what --fix would change, without writing files")
    parser.add_argument("--stdin-filename", metavar="PATH", default="-", help="file name to report for standard input")
    parser.add_argument("--exit-zero", action="store_true", help="exit with 0 even if there are findings")
    output.add_output(parser, output.LINT_FORMATS, "print findings only, and nothing if there are none")
    _add_project_options(parser)
    parser.set_defaults(command=run)


def _add_project_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for repositories with many files, or with existing findings."""
    group = parser.add_argument_group("in a project", "defaults can be set in [tool.gradcheck-accum] of pyproject.toml")
    group.add_argument(
        "--exclude", metavar="GLOBS", action="append", help="glob patterns to exclude, replacing the defaults"
    )
    group.add_argument(
        "--extend-exclude", metavar="GLOBS", action="append", help="glob patterns to exclude in addition"
    )
    group.add_argument(
        "--force-exclude", action="store_true", help="apply exclusions even to files that are named explicitly"
    )
    group.add_argument("--statistics", action="store_true", help="print the number of findings per code instead")
    group.add_argument(
        "--report-unused-suppressions", action="store_true", help="report suppression comments that suppress nothing"
    )
    group.add_argument("--baseline", metavar="FILE", type=Path, help="do not report the findings listed in FILE")
    start = group.add_mutually_exclusive_group()
    start.add_argument(
        "--write-baseline", metavar="FILE", type=Path, help="write all current findings to FILE as the baseline"
    )
    start.add_argument("--add-noqa", action="store_true", help="add a suppression comment to every line with a finding")
    group.add_argument("--jobs", metavar="N", type=positive_int, help="number of processes (default: one per core)")
    group.add_argument("--no-cache", action="store_true", help="ignore cached results and do not write any")


def run(options: argparse.Namespace) -> int:
    """Lint, and return the exit status."""
    with settings_are_usage():
        return _run_as_settled(options)


def _run_as_settled(options: argparse.Namespace) -> int:
    paths: list[str] = options.paths or ["."]
    if paths == ["-"]:
        if options.add_noqa:
            raise UsageError("--add-noqa writes to files: it cannot be combined with standard input (-)")
    elif "-" in paths:
        raise UsageError("standard input (-) cannot be combined with other paths")
    elif "" in paths:
        raise UsageError("a path is empty (an unset variable?)")
    instead = _instead_of_a_report(options)
    if instead and options.output_file:
        raise UsageError(f"--output-file cannot be combined with {instead}, which prints no report")
    # The fixed standard input is printed to stdout, so the report goes to stderr.
    stream = sys.stderr if paths == ["-"] and options.fix and not options.diff else sys.stdout
    with output.opened(options, stream) as report:
        return _lint_and_report(paths, options, report)


def _instead_of_a_report(options: argparse.Namespace) -> str:
    """The option that replaces the report, if one is given."""
    asked = {"--write-baseline": options.write_baseline, "--add-noqa": options.add_noqa, "--diff": options.diff}
    return next((option for option, value in asked.items() if value), "")


def _lint_and_report(paths: Sequence[str], options: argparse.Namespace, report: output.Output) -> int:
    from gradcheck_accum.report.frame import Sources
    from gradcheck_accum.sources.decoding import shown_text

    stdin: dict[str, bytes] = {}
    once: dict[str, bytes] = {}
    if paths == ["-"]:
        source = stdin[options.stdin_filename] = streams.read_stdin()
        result = _lint_stdin(source, options)
    else:
        once = _read_once(paths, options)
        result = _lint_paths(paths, once, options)
    if options.write_baseline or options.add_noqa:
        return _start_with(result, options)
    if options.diff:
        return _diff(options, result)
    if options.fix:
        result = _fix(result, stdin)
    sources = Sources({path: shown_text(content) for path, content in {**stdin, **once}.items()})
    if report.form in output.FOR_PEOPLE:
        _complain_of_unreadable(result)
    report.write(output.lint_report(result, report, sources, statistics=options.statistics))
    return OK if options.exit_zero and result.exit_status == FOUND else result.exit_status


def _read_once(paths: Sequence[str], options: argparse.Namespace) -> dict[str, bytes]:
    """The contents of the pipes among the paths (``<(...)``, /dev/stdin), which can be read only once."""
    from gradcheck_accum.lint.examination.document import read

    found: dict[str, bytes] = {}
    for path in paths:
        if not os.path.exists(path) or os.path.isfile(path) or os.path.isdir(path):
            continue
        if options.fix or options.add_noqa:
            raise UsageError(
                f"{path} is not a regular file: {'--fix' if options.fix else '--add-noqa'} cannot write to it"
            )
        with contextlib.suppress(OSError):  # lint reports the error
            found[path] = read(path)
    return found


def _fixes(options: argparse.Namespace) -> Literal["safe", "unsafe"] | None:
    if not (options.fix or options.diff) or options.write_baseline or options.add_noqa:
        return None
    return "unsafe" if options.unsafe_fixes else "safe"


def _fix(result: LintResult, given: dict[str, bytes]) -> LintResult:
    """Fix what was found, in place; contents that were ``given`` are printed instead. Findings are updated."""
    from gradcheck_accum.lint.fixes.files import fixed_result, write_all

    if not given:
        return write_all(result)
    given.update({rewrite.path: rewrite.after for rewrite in result.rewrites})
    for content in given.values():
        streams.write_bytes(content)
    return fixed_result(result)


def _diff(options: argparse.Namespace, result: LintResult) -> int:
    from gradcheck_accum.report.diff_text import diff_text

    _complain_of_unreadable(result)
    for rewrite in result.rewrites:
        for piece in rewrite.pieces:
            streams.write(diff_text(rewrite.path, piece), end="")
    count = sum(len(rewrite.fixed) for rewrite in result.rewrites)
    if not options.quiet:
        print(f"Would fix {count} mistake{'' if count == 1 else 's'}.", file=sys.stderr)
    if result.unreadable:
        return ERROR
    return FOUND if result.rewrites and not options.exit_zero else OK


def _lint_paths(paths: Sequence[str], once: Mapping[str, bytes], options: argparse.Namespace) -> LintResult:
    from gradcheck_accum.lint import lint_paths
    from gradcheck_accum.report.progress import ProgressBar

    settings = _settings(options, paths)
    progress = ProgressBar(sys.stderr, quiet=options.quiet)
    try:
        return lint_paths(
            paths,
            settings,
            jobs=options.jobs or _cores(),
            cache_in=None if options.no_cache else settings.root,
            progress=progress,
            report_unused=options.report_unused_suppressions,
            fixes=_fixes(options),
            given=once,
        )
    finally:
        progress.clear()


def _lint_stdin(source: bytes, options: argparse.Namespace) -> LintResult:
    from gradcheck_accum.lint.project.run import lint_given

    path: str = options.stdin_filename
    settings = _settings(options, [path])
    return lint_given(source, path, settings, report_unused=options.report_unused_suppressions, fixes=_fixes(options))


def _settings(options: argparse.Namespace, paths: Sequence[str]) -> Settings:
    """The settings of the project that ``paths`` belong to, overridden by the command line."""
    from gradcheck_accum.settings import Patterns, settings_for, with_codes

    settings = with_codes(settings_for(paths), select=options.select, ignore=options.ignore, called="--{}")
    if options.exclude is not None:
        settings = replace(settings, exclude=Patterns(Path(), _listed(options.exclude), "--exclude"))
    if options.extend_exclude is not None:
        further = Patterns(Path(), _listed(options.extend_exclude), "--extend-exclude")
        settings = replace(settings, extend_exclude=(*settings.extend_exclude, further))
    settings = replace(settings, force_exclude=options.force_exclude)
    if options.baseline or options.write_baseline:
        # Writing a new baseline ignores an existing one.
        settings = replace(settings, baseline=None if options.write_baseline else options.baseline)
    return settings


def _listed(values: Sequence[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",")]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_with(result: LintResult, options: argparse.Namespace) -> int:
    """Accept every existing finding, in a baseline or by ``noqa`` comments."""
    from gradcheck_accum.report.words import plural

    problems = list(result.unreadable)
    if options.write_baseline:
        from gradcheck_accum.lint.project.baseline import write_baseline

        try:
            write_baseline(options.write_baseline, result.findings)
        except OSError as error:
            raise UsageError(f"--write-baseline {options.write_baseline}: {error.strerror}") from None
        done = f"Wrote {plural(len(result.findings), 'mistake')} to {options.write_baseline}."
    else:
        from gradcheck_accum.lint.project.comment_writer import suppress

        hidden, undone = suppress(result.findings)
        problems += undone
        files = len({finding.where.path for finding in hidden})
        done = f"Suppressed {plural(len(hidden), 'mistake')} in {plural(files, 'file')}."
    result = replace(result, unreadable=tuple(problems))
    _complain_of_unreadable(result)
    if not options.quiet:
        streams.write(done)
    return ERROR if problems else OK


def _complain_of_unreadable(result: LintResult) -> None:
    from gradcheck_accum.report.lint_text import unreadable_text

    for line in unreadable_text(result):
        print(f"{PROGRAM}: {line}", file=sys.stderr)
