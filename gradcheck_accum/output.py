"""Where a report goes and in which format: the options that commands with a report share, and their effects.

A report is rendered by the module of its format, which is imported only then.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

from gradcheck_accum import streams
from gradcheck_accum.errors import UsageError
from gradcheck_accum.files import try_to_replace, write_atomically
from gradcheck_accum.streams import StreamError

if TYPE_CHECKING:
    from gradcheck_accum.report.frame import Sources
    from gradcheck_accum.report.paint import Paint
    from gradcheck_accum.results.comparison import CompareResult
    from gradcheck_accum.results.findings import LintResult
    from gradcheck_accum.results.verdict import VerifyResult

LINT_FORMATS = ("text", "concise", "json", "sarif", "github", "junit")
VERIFY_FORMATS = ("text", "json", "github", "junit")
COMPARE_FORMATS = ("text", "json")
RULES_FORMATS = ("text", "json")

FOR_PEOPLE = frozenset({"text", "concise"})
"""The formats whose unreadable paths are reported on standard error."""

PAGE_NEEDS = ("jinja2", "matplotlib")
PAGE_EXTRA = "report"
"""The extra that installs what pages are rendered with."""

NARROWEST, WIDEST = 60, 200
"""The range of columns that a report is laid out for, whatever the terminal's width."""


def add_format(parser: argparse.ArgumentParser, formats: tuple[str, ...]) -> None:
    """Add the option that chooses between ``formats``; the first is the default."""
    parser.add_argument("--output-format", choices=formats, default=formats[0])


def add_output(parser: argparse.ArgumentParser, formats: tuple[str, ...], quiet: str) -> None:
    """Add the options of a command whose report may go to a file; ``quiet`` says what it then reports."""
    group = parser.add_argument_group("report")
    group.add_argument("--output-format", choices=formats, default=formats[0])
    group.add_argument("--output-file", metavar="FILE", type=Path, help="write the report to FILE")
    group.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="color the report (default: auto)"
    )
    group.add_argument("-q", "--quiet", action="store_true", help=quiet)


def add_page(parser: argparse.ArgumentParser) -> None:
    """Add the option that asks for a page too."""
    told = f"also write an HTML page with plots; needs gradcheck-accum[{PAGE_EXTRA}]"
    parser.add_argument("--report", metavar="FILE.html", type=Path, help=told)


@dataclass(frozen=True, slots=True)
class PageFile:
    """Where a page goes: a reader finds either the old page or the complete new one."""

    path: Path

    def write(self, text: str) -> None:
        """Write the page. Raises StreamError if that fails."""
        try:
            write_atomically(self.path, text.encode("utf-8", errors="backslashreplace"))
        except OSError as error:
            raise StreamError(f"--report {self.path}: {error.strerror}") from None


def needs_for_page(options: argparse.Namespace) -> None:
    """Raise UsageError if a page is requested and a package to render it is missing."""
    if options.report is None:
        return
    from importlib.util import find_spec  # not needed by most runs

    missing = [name for name in PAGE_NEEDS if find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        extra = f"pip install 'gradcheck-accum[{PAGE_EXTRA}]'"
        raise UsageError(f"--report needs {' and '.join(missing)}, which {are} not installed here: {extra}")


def page_file(options: argparse.Namespace) -> PageFile | None:
    """Where the requested page goes; checked before there is anything to write.

    Raises UsageError if nothing can be written there, or the path is that of the script or another output.
    """
    path: Path | None = options.report
    if path is None:
        return None
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            raise UsageError(f"--report {path}: {'is a directory' if target.is_dir() else 'is not a regular file'}")
        for other, called in ((options.script, "the script itself"), (options.output_file, "--output-file too")):
            if other and Path(os.path.realpath(other)) == target:
                raise UsageError(f"--report {path}: is {called}")
        if target.exists() and not os.access(target, os.W_OK):
            raise UsageError(f"--report {path}: Permission denied")
        try_to_replace(target)
    except (OSError, ValueError) as error:
        raise UsageError(f"--report {path}: {getattr(error, 'strerror', None) or error}") from None
    return PageFile(path)


@dataclass(frozen=True, slots=True)
class Output:
    """Where a report goes, and how it is shown there."""

    form: str
    stream: TextIO
    file: Path | None = None
    color: Literal["auto", "always", "never"] = "auto"
    quiet: bool = False
    verbose: bool = False

    @property
    def paint(self) -> Paint:
        """Color if requested, otherwise if the stream supports it."""
        from gradcheck_accum.report.paint import Paint

        if self.color == "auto" and self.file is None:
            return Paint.for_stream(self.stream)
        return Paint(self.color == "always")

    @property
    def width(self) -> int | None:
        """The columns of the terminal that shows the report; None if it is not a terminal."""
        if self.file or not self.stream.isatty():
            return None
        import shutil  # not needed by most runs

        return min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)

    def write(self, text: str) -> None:
        """Write a report, unless it is empty. Raises StreamError if that fails."""
        if not text:
            return
        if self.file is None:
            streams.write(text, self.stream)
            return
        try:
            print(text, file=self.stream, flush=True)
        except OSError as error:
            raise StreamError(f"--output-file {self.file}: {error.strerror}") from None


@contextmanager
def opened(options: argparse.Namespace, stream: TextIO | None = None, *, verbose: bool = False) -> Iterator[Output]:
    """The requested output; ``stream`` (default: standard output) is used if the options name no file.

    A file is opened before there is anything to write, so that a long run does not end in a report that cannot be
    written, and an earlier run's report is not mistaken for this one's. Raises UsageError if it cannot be opened.
    """
    file: Path | None = options.output_file
    asked = (options.color, options.quiet, verbose)
    if file is None:
        yield Output(options.output_format, stream or sys.stdout, None, *asked)
        return
    try:
        taking = open(file, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise UsageError(f"--output-file {file}: {error.strerror}") from None
    try:
        yield Output(options.output_format, taking, file, *asked)
    finally:
        with suppress(OSError):  # what was written is flushed; errors have been reported
            taking.close()


def lint_report(result: LintResult, output: Output, sources: Sources, *, statistics: bool = False) -> str:
    """The findings of ``lint``, in the requested format."""
    if output.form == "json":
        from gradcheck_accum.report.as_json import lint_json

        return lint_json(result)
    if output.form == "sarif":
        from gradcheck_accum.report.as_sarif import lint_sarif
        from gradcheck_accum.rule_pages import readable_page

        return lint_sarif(result, readable_page)
    if output.form == "github":
        from gradcheck_accum.report.as_github import lint_github

        return lint_github(result, quiet=output.quiet)
    if output.form == "junit":
        from gradcheck_accum.report.as_junit import lint_junit

        return lint_junit(result)
    from gradcheck_accum.report import lint_text

    if statistics:
        return lint_text.statistics_text(result, quiet=output.quiet)
    if output.form == "concise":
        return lint_text.concise_text(result, output.paint, quiet=output.quiet)
    return lint_text.lint_text(result, sources, output.paint, quiet=output.quiet, width=output.width)


def verify_report(result: VerifyResult, output: Output) -> str:
    """The results of ``verify``, in the requested format."""
    if output.form == "json":
        from gradcheck_accum.report.as_json import verify_json

        return verify_json(result)
    if output.form == "github":
        from gradcheck_accum.report.as_github import verify_github

        return verify_github(result)
    if output.form == "junit":
        from gradcheck_accum.report.as_junit import verify_junit

        return verify_junit(result)
    from gradcheck_accum.report.verify_text import verify_text
    from gradcheck_accum.report.wrap import WIDTH

    width = output.width or WIDTH
    return verify_text(result, paint=output.paint, verbose=output.verbose, quiet=output.quiet, width=width)


def compare_report(result: CompareResult, output: Output) -> str:
    """The results of ``compare``, in the requested format."""
    if output.form == "json":
        from gradcheck_accum.report.as_json import compare_json

        return compare_json(result)
    from gradcheck_accum.report.compare_text import compare_text
    from gradcheck_accum.report.wrap import WIDTH

    return compare_text(result, paint=output.paint, quiet=output.quiet, width=output.width or WIDTH)


def verify_page(result: VerifyResult) -> str:
    """The results of ``verify``, as a page."""
    from gradcheck_accum.report.page import verify_page

    return verify_page(result)


def compare_page(result: CompareResult) -> str:
    """The results of ``compare``, as a page."""
    from gradcheck_accum.report.page import compare_page

    return compare_page(result)
