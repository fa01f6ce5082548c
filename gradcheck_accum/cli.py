"""The command line. Engines and reports are imported by the command that needs them: ``--help`` costs no more.

Exit status: 0 nothing found or equivalent; 1 findings, or the run deviates; 2 usage, unreadable input, or an error of
ours; 3 not decided.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from gradcheck_accum import __version__, output, streams
from gradcheck_accum.errors import UsageError, internal_error, wants_tracebacks
from gradcheck_accum.mistakes import CATALOGUE, rule_names
from gradcheck_accum.run_options import (
    DTYPES,
    REFERENCES,
    MemoryBudget,
    OptionError,
    memory_budget,
    not_negative,
    positive,
    positive_int,
    refuse_clashes,
)
from gradcheck_accum.run_options import SETTINGS as RUN_SETTINGS
from gradcheck_accum.spelling import did_you_mean
from gradcheck_accum.streams import StreamError

if TYPE_CHECKING:
    from gradcheck_accum.findings import LintResult
    from gradcheck_accum.settings import Settings
    from gradcheck_accum.verdict import VerifyResult

PROGRAM = "gradcheck-accum"

OK, FOUND, ERROR = 0, 1, 2
INTERRUPTED, BROKEN_PIPE = 130, 141
"""What a shell shows for a program that SIGINT or SIGPIPE ended."""

_Command = Callable[[argparse.Namespace], int]
_Value = TypeVar("_Value")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line: the usage of every option is a ``--help`` away."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Complain of arguments that the command does not know."""
        near = did_you_mean(unknown[0], self.options())
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)} (see {self.prog} --help){near}")

    def options(self) -> list[str]:
        """The long options, as the help lists them."""
        return re.findall(r"--[a-z][a-z-]*", self.format_help())

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # argparse suggests nothing before Python 3.14.
        if action.choices is not None and value not in action.choices:
            near = did_you_mean(str(value), map(str, action.choices))
            listed = ", ".join(map(repr, action.choices))
            raise argparse.ArgumentError(action, f"invalid choice: {value!r} (choose from {listed}){near}")

    def print_help(self, file: Any = None) -> None:
        streams.write(self.format_help(), file, end="")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    try:
        streams.prepare()
        status = _run(sys.argv[1:] if arguments is None else list(arguments))
        streams.flush()
        return status
    except (UsageError, StreamError) as error:
        return _complain(str(error))
    except BrokenPipeError:
        # The reader went away (`| head`).
        streams.discard_stdout()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if wants_tracebacks():
            raise
        return _complain(internal_error(error))


def _run(arguments: list[str]) -> int:
    own, for_script = _split(arguments)
    parser = command_line()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions, in the way of argcomplete
        with contextlib.suppress(ImportError):
            from argcomplete import autocomplete

            autocomplete(parser)  # ends here
    if not arguments:
        parser.print_help(sys.stderr)
        return ERROR
    try:
        options, unknown = parser.parse_known_args(own)
    finally:
        streams.flush()  # --help and --version end here
    options.arguments = for_script
    if unknown:
        if options.command in (_verify, _compare):
            raise UsageError(_not_ours(own, options, unknown))
        options.parser.refuse(unknown)
    if for_script is not None and options.command not in (_verify, _compare):
        raise UsageError("only verify and compare take arguments after --")
    command: _Command = options.command
    return command(options)


def _not_ours(own: list[str], options: argparse.Namespace, unknown: list[str]) -> str:
    """What to say of arguments before ``--`` that ``verify`` does not know: they are taken to be the script's."""
    # A word that stands behind an argument of the script's was taken for the script itself.
    behind = own[own.index(unknown[0]) :] if unknown[0] in own else []
    mistaken = options.script in behind
    ours, theirs = _parted(own, unknown, options.script if mistaken else None)
    if not options.module and (mistaken or options.script is None):
        script = next((argument for argument in theirs if argument.endswith(".py")), "SCRIPT")
        theirs = [argument for argument in theirs if argument != script]
        ours.append(script)
    command = shlex.join([PROGRAM, *ours, "--", *theirs, *(options.arguments or [])])
    near = did_you_mean(unknown[0], options.parser.options())
    return f"unrecognized arguments: {' '.join(theirs)}: the script's own arguments go after --: {command}{near}"


def _parted(own: list[str], unknown: list[str], value: str | None) -> tuple[list[str], list[str]]:
    """Our arguments and the script's, in order; ``value`` is one that was taken for the script of a module's run."""
    ours, theirs, left = list[str](), list[str](), list(unknown)
    for argument in own:
        if left and argument == left[0]:
            theirs.append(left.pop(0))
        elif argument == value and theirs:
            theirs.append(argument)
            value = None
        else:
            ours.append(argument)
    return ours, theirs


def _split(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """Part our arguments from the script's, which stand after the first ``--``."""
    if "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _complain(message: str) -> int:
    with contextlib.suppress(OSError):
        print(f"{PROGRAM}: {message}", file=sys.stderr)
    return ERROR


def command_line() -> argparse.ArgumentParser:
    """The parser of the whole command line, with a parser for each command."""
    parser = _Parser(
        prog=PROGRAM,
        description="Does the gradient at every optimizer.step() equal that of the true large batch?",
        epilog="exit status: 0 nothing found / equivalent; 1 findings / deviates; 2 usage, unreadable input or an "
        "error of ours; 3 not decided",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_lint(commands.add_parser("lint", help="read training scripts, never running them"))
    _add_verify(commands.add_parser("verify", help="run a training script and measure its gradients"))
    _add_compare(commands.add_parser("compare", help="run a script on true large batches too, and compare the steps"))
    _add_fuzz(commands.add_parser("fuzz", help="look for data that a training loop gets wrong"))
    explain = commands.add_parser("explain", help="print the page of one mistake")
    explain.add_argument("rule", metavar="CODE|NAME")
    explain.set_defaults(command=_explain)
    rules = commands.add_parser("rules", help="list the mistakes")
    output.add_format(rules, output.RULES_FORMATS)
    rules.set_defaults(command=_rules)
    server = commands.add_parser("server", help="a language server on standard input and output, for editors")
    server.set_defaults(command=_server)
    for own in commands.choices.values():
        own.set_defaults(parser=own)
    return parser


def _add_codes(parser: argparse.ArgumentParser, select: str, ignore: str) -> None:
    parser.add_argument("--select", metavar="CODES", action="append", help=select)
    parser.add_argument("--ignore", metavar="CODES", action="append", help=ignore)


def _add_lint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="*", help="files and directories (default: .); - is stdin")
    _add_codes(parser, "report only these (GA101,GA2)", "do not report these")
    parser.add_argument("--fix", action="store_true", help="repair what can be repaired, in place; see --unsafe-fixes")
    parser.add_argument("--unsafe-fixes", action="store_true", help="also fixes that change more than the mistake")
    parser.add_argument("--diff", action="store_true", help="show what --fix would change, and write nothing")
    parser.add_argument("--stdin-filename", metavar="PATH", default="-", help="what to call standard input")
    parser.add_argument("--exit-zero", action="store_true", help="exit with 0 even where there are findings")
    output.add_output(parser, output.LINT_FORMATS, "report findings alone, and nothing where there are none")
    _add_lint_in_projects(parser)
    parser.set_defaults(command=_lint)


def _add_lint_in_projects(parser: argparse.ArgumentParser) -> None:
    """What a repository needs that has many files, and findings already."""
    group = parser.add_argument_group("in a project", "settings stand in [tool.gradcheck-accum] of its pyproject.toml")
    group.add_argument("--exclude", metavar="GLOBS", action="append", help="what to pass over, instead of the usual")
    group.add_argument("--extend-exclude", metavar="GLOBS", action="append", help="what else to pass over")
    group.add_argument("--force-exclude", action="store_true", help="pass over it even where it is given by name")
    group.add_argument("--statistics", action="store_true", help="count the findings of each code instead")
    group.add_argument(
        "--report-unused-suppressions", action="store_true", help="report comments that switch off what is not there"
    )
    group.add_argument("--baseline", metavar="FILE", type=Path, help="do not report the findings listed there")
    start = group.add_mutually_exclusive_group()
    start.add_argument("--write-baseline", metavar="FILE", type=Path, help="list all findings there instead")
    start.add_argument("--add-noqa", action="store_true", help="write a comment beside every finding instead")
    group.add_argument("--jobs", metavar="N", type=_positive_int, help="processes for many files (default: one a core)")
    group.add_argument("--no-cache", action="store_true", help="analyse what has been analysed before")


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{PROGRAM} verify [options] (SCRIPT | -m MODULE) [-- ARGS ...]"
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help="the training script; its arguments go after --")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module instead, as python -m does")
    parser.add_argument("--max-windows", metavar="N", type=_positive_int, help="stop after this many optimizer steps")
    parser.add_argument(
        "--reference",
        choices=REFERENCES,
        help="ledger: the micro-batches' own gradients, weighed right; replay: one large batch, run again; sketch: as "
        "ledger, by random projections, without any copy of the gradients (default: both, or sketch where memory is "
        "short)",
    )
    parser.add_argument(
        "--memory-budget",
        metavar="SIZE",
        type=_memory_budget,
        help="what may be held beside the loop (800MB, 1.5GiB, 50%% of what is free; default: what is free)",
    )
    parser.add_argument("--dtype", choices=DTYPES, help="dtype of the replay")
    parser.add_argument("--device", help="device of the replay (cpu, cuda, cuda:1)")
    _add_codes(parser, "accept all but these (GA101,GA2)", "accept these: they are reported and decide nothing")
    parser.add_argument("--timeout", metavar="SECONDS", type=_positive, help="give up after this long")
    parser.add_argument(
        "--loss-coefficient", metavar="A", type=_number, help="what the loss is meant to be multiplied by"
    )
    parser.add_argument("--rtol", type=_not_negative, help="relative error to allow (default: derived from rounding)")
    parser.add_argument("--atol", type=_not_negative, help="absolute error to allow")
    parser.add_argument(
        "--trajectory",
        action=argparse.BooleanOptionalAction,
        help="also train a reference alongside on true large batches, and show how far the weights drift from it",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action=argparse.BooleanOptionalAction,
        help="also report what was compared with what, and what it costs",
    )
    output.add_output(parser, output.VERIFY_FORMATS, "report the verdict and the causes alone, and no pass")
    output.add_page(parser)
    parser.epilog = "what is not given here may stand in [tool.gradcheck-accum.verify] of pyproject.toml"
    parser.set_defaults(command=_verify)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{PROGRAM} compare [options] (SCRIPT | -m MODULE) --with ARGS --with ARGS [-- ARGS ...]"
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help="the training script; what all share goes after --")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module instead, as python -m does")
    parser.add_argument(
        "--with",
        dest="configurations",
        metavar="ARGS",
        action="append",
        default=[],
        help='the script\'s arguments in one configuration: --with="--batch-size 5 --accum 3"',
    )
    parser.add_argument(
        "--vary",
        metavar="NAME=V1,V2",
        action="append",
        default=[],
        help="one argument's value in each configuration, instead of --with (accum=1,2,8)",
    )
    parser.add_argument("--free", action="store_true", help="let every configuration train its own weights")
    parser.add_argument("--no-dropout", action="store_true", help="drop nothing out, in any configuration")
    _add_codes(parser, "accept all but these (GA101,GA2)", "accept these: they are reported and decide nothing")
    parser.add_argument("--max-windows", metavar="N", type=_positive_int, help="stop after this many optimizer steps")
    parser.add_argument("--timeout", metavar="SECONDS", type=_positive, help="give up after this long")
    parser.add_argument(
        "--loss-coefficient", metavar="A", type=_number, help="what the loss is meant to be multiplied by"
    )
    parser.add_argument("--rtol", type=_not_negative, help="relative error to allow (default: derived from rounding)")
    parser.add_argument("--atol", type=_not_negative, help="absolute error to allow")
    output.add_output(parser, output.COMPARE_FORMATS, "report the verdict and the causes alone, and no pass")
    output.add_page(parser)
    parser.epilog = "what is not given here may stand in [tool.gradcheck-accum.verify] of pyproject.toml"
    parser.set_defaults(command=_compare)


def _add_fuzz(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="FILE.py::LOOP",
        nargs="?",
        help="a function that trains, its arguments supplied by name (default: our own engines, on drawn loops)",
    )
    parser.add_argument("--factories", metavar="FILE.py", help="functions that supply the arguments of their names")
    parser.add_argument("--examples", metavar="N", type=_positive_int, help="cases to try (default: the profile's)")
    parser.add_argument("--seed", metavar="S", type=_whole, help="what is drawn (default: as Hypothesis is set up)")
    parser.add_argument("--time-budget", metavar="SECONDS", type=_positive, help="begin no case after this long")
    parser.set_defaults(command=_fuzz)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not '{text}'") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not '{text}'") from None


def _positive_int(text: str) -> int:
    return _sensible(positive_int, _whole(text))


def _memory_budget(text: str) -> MemoryBudget:
    try:
        return memory_budget(text)
    except OptionError as error:
        raise argparse.ArgumentTypeError(f"{error}, not '{text}'") from None


def _positive(text: str) -> float:
    return _sensible(positive, _number(text))


def _not_negative(text: str) -> float:
    return _sensible(not_negative, _number(text))


def _sensible(read: Callable[[_Value], _Value], value: _Value) -> _Value:
    try:
        return read(value)
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@contextmanager
def _settings_are_usage() -> Iterator[None]:
    """A setting that makes no sense is said in one line, as an option that does not."""
    from gradcheck_accum.settings import SettingsError

    try:
        yield
    except SettingsError as error:
        raise UsageError(str(error)) from None


def _lint(options: argparse.Namespace) -> int:
    with _settings_are_usage():
        return _lint_as_settled(options)


def _lint_as_settled(options: argparse.Namespace) -> int:
    paths: list[str] = options.paths or ["."]
    if paths == ["-"]:
        if options.add_noqa:
            raise UsageError("--add-noqa writes to files: it cannot be combined with standard input (-)")
    elif "-" in paths:
        raise UsageError("standard input (-) cannot be combined with other paths")
    elif "" in paths:
        raise UsageError("an empty path names nothing (a variable that is not set?)")
    instead = _instead_of_a_report(options)
    if instead and options.output_file:
        raise UsageError(f"--output-file goes with a report: {instead} gives none")
    # The fixed standard input goes where it would have been written to, and the report beside it.
    stream = sys.stderr if paths == ["-"] and options.fix and not options.diff else sys.stdout
    with output.opened(options, stream) as report:
        return _lint_and_report(paths, options, report)


def _instead_of_a_report(options: argparse.Namespace) -> str:
    """The option that asks for something else than a report, if one does."""
    asked = {"--write-baseline": options.write_baseline, "--add-noqa": options.add_noqa, "--diff": options.diff}
    return next((option for option, value in asked.items() if value), "")


def _lint_and_report(paths: Sequence[str], options: argparse.Namespace, report: output.Output) -> int:
    from gradcheck_accum.report.frame import Sources
    from gradcheck_accum.source_text import shown_text

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
    """What comes out of the pipes among the paths (``<(...)``, /dev/stdin): it can be read only once."""
    from gradcheck_accum.lint.document import read

    found: dict[str, bytes] = {}
    for path in paths:
        if not os.path.exists(path) or os.path.isfile(path) or os.path.isdir(path):
            continue
        if options.fix or options.add_noqa:
            raise UsageError(
                f"{path} is no regular file: {'--fix' if options.fix else '--add-noqa'} cannot write to it"
            )
        with contextlib.suppress(OSError):  # lint says why
            found[path] = read(path)
    return found


def _fixes(options: argparse.Namespace) -> Literal["safe", "unsafe"] | None:
    if not (options.fix or options.diff) or options.write_baseline or options.add_noqa:
        return None
    return "unsafe" if options.unsafe_fixes else "safe"


def _fix(result: LintResult, given: dict[str, bytes]) -> LintResult:
    """Fix what was found, in place; contents that were ``given`` are printed instead, and brought up to date."""
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
    from gradcheck_accum.lint.run import lint_given

    path: str = options.stdin_filename
    settings = _settings(options, [path])
    return lint_given(source, path, settings, report_unused=options.report_unused_suppressions, fixes=_fixes(options))


def _settings(options: argparse.Namespace, paths: Sequence[str]) -> Settings:
    """What the project that ``paths`` belong to has settled, and in its place what the command line says."""
    from gradcheck_accum.settings import Patterns, settings_for, with_codes

    settings = with_codes(settings_for(paths), select=options.select, ignore=options.ignore, called="--{}")
    if options.exclude is not None:
        settings = replace(settings, exclude=Patterns(Path(), _listed(options.exclude), "--exclude"))
    if options.extend_exclude is not None:
        further = Patterns(Path(), _listed(options.extend_exclude), "--extend-exclude")
        settings = replace(settings, extend_exclude=(*settings.extend_exclude, further))
    settings = replace(settings, force_exclude=options.force_exclude)
    if options.baseline or options.write_baseline:
        # What is listed anew takes no account of an older list.
        settings = replace(settings, baseline=None if options.write_baseline else options.baseline)
    return settings


def _listed(values: Sequence[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",")]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_with(result: LintResult, options: argparse.Namespace) -> int:
    """Put up with every finding, in the way that was asked for."""
    from gradcheck_accum.report.words import plural

    problems = list(result.unreadable)
    if options.write_baseline:
        from gradcheck_accum.lint.baseline import write_baseline

        try:
            write_baseline(options.write_baseline, result.findings)
        except OSError as error:
            raise UsageError(f"--write-baseline {options.write_baseline}: {error.strerror}") from None
        done = f"Wrote {plural(len(result.findings), 'mistake')} to {options.write_baseline}."
    else:
        from gradcheck_accum.lint.comment_writer import suppress

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


def _needs(command: str, package: str) -> None:
    """Complain where a package is missing that ``command`` does not work without."""
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{command} needs {package}, which is not installed here: pip install {package}")


def _fuzz(options: argparse.Namespace) -> int:
    for package in ("torch", "hypothesis"):
        _needs("fuzz", package)
    if options.target == "":
        raise UsageError("an empty target names nothing (a variable that is not set?)")
    from gradcheck_accum.report.fuzz_text import campaign_text, loop_text
    from gradcheck_accum.report.progress import ProgressBar
    from gradcheck_accum.trials import Campaign, Interrupted

    progress = ProgressBar(sys.stderr, "cases")
    try:
        return _fuzz_target(options, progress) if options.target else _fuzz_engines(options, progress)
    except Interrupted as cut:
        progress.clear()
        streams.write(campaign_text(cut.so_far) if isinstance(cut.so_far, Campaign) else loop_text(cut.so_far))
        print(f"{PROGRAM}: interrupted: that is what was seen so far", file=sys.stderr)
        return INTERRUPTED
    finally:
        progress.clear()


def _fuzz_target(options: argparse.Namespace, progress: Callable[[int, int], None]) -> int:
    from gradcheck_accum.fuzz import CannotSupply, fuzz_loop
    from gradcheck_accum.fuzz.targets import BadTarget, load_function, load_module
    from gradcheck_accum.report.fuzz_text import loop_text

    try:
        trial = fuzz_loop(
            load_function(options.target),
            target=options.target,
            factories=load_module(options.factories) if options.factories else None,
            examples=options.examples,
            random_seed=options.seed,
            time_budget=options.time_budget,
            progress=progress,
        )
    except (BadTarget, CannotSupply) as error:
        raise UsageError(str(error)) from None
    streams.write(loop_text(trial))
    return trial.exit_status


def _fuzz_engines(options: argparse.Namespace, progress: Callable[[int, int], None]) -> int:
    if options.factories:
        raise UsageError("--factories goes with FILE.py::LOOP")
    from gradcheck_accum.fuzz import run_campaign
    from gradcheck_accum.report.fuzz_text import campaign_text

    campaign = run_campaign(
        options.examples or 100,
        random_seed=options.seed or 0,
        time_budget=options.time_budget,
        progress=progress,
    )
    streams.write(campaign_text(campaign))
    return campaign.exit_status


def _verify(options: argparse.Namespace) -> int:
    _refuse_two_targets(options, "verify")
    with _settings_are_usage():
        settings = _settings_of_run(options)
        told = _told_of_run(options, settings)
    _needs("verify", "torch")
    output.needs_for_page(options)
    from gradcheck_accum.accepting import Acceptance, accepted
    from gradcheck_accum.verify import is_orphan, is_other_rank

    verbose = told.pop("verbose")
    acceptance = Acceptance(settings)
    if is_other_rank():
        # Rank 0 has the report, for all of them; a launcher would end it if another failed before.
        result = _measured(options, told)
        return _complain(f"{result.script}: {result.error}") if is_orphan(result.error) else OK
    page = output.page_file(options)
    with output.opened(options, verbose=verbose) as report:
        result = _with_settling(accepted(_measured(options, told), acceptance), options)
        if result.error and not result.windows and report.form in output.FOR_PEOPLE:
            _complain(f"{result.script}: {result.error}")
        else:
            report.write(output.verify_report(result, report))
    if page is not None:
        page.write(output.verify_page(result))
    return result.exit_status


def _measured(options: argparse.Namespace, told: dict[str, Any]) -> VerifyResult:
    from gradcheck_accum.verify import verify_script

    return verify_script(options.script, options.arguments or [], module=options.module, **told)


def _with_settling(result: VerifyResult, options: argparse.Namespace) -> VerifyResult:
    """The result, and where it is open the command that would decide it, if the script's arguments show one."""
    from gradcheck_accum.verdict import Verdict

    if result.verdict is not Verdict.INCONCLUSIVE or not result.windows:
        return result
    from gradcheck_accum.side_by_side.proposal import proposed

    name, is_module = options.script or options.module, options.module is not None
    return replace(result, settled_by=proposed(name, options.arguments or [], is_module=is_module))


def _compare(options: argparse.Namespace) -> int:
    from gradcheck_accum.side_by_side import BadConfigurations, compare_script, configurations

    _refuse_two_targets(options, "compare")
    with _settings_are_usage():
        settings = _settings_of_run(options)
        told = _told_of_run(options, settings, of=_COMPARED)
    try:
        each = configurations(options.configurations, options.vary)
    except BadConfigurations as error:
        raise UsageError(str(error)) from None
    _needs("compare", "torch")
    output.needs_for_page(options)
    page = output.page_file(options)
    from gradcheck_accum.accepting import Acceptance
    from gradcheck_accum.verify import is_other_rank

    if is_other_rank():
        return ERROR  # rank 0 says why, for all of them
    with output.opened(options) as report:
        result = compare_script(
            options.script,
            each,
            options.arguments or [],
            module=options.module,
            free=options.free,
            no_dropout=options.no_dropout,
            by=Acceptance(settings),
            **told,
        )
        if result.error and report.form in output.FOR_PEOPLE:
            _complain(f"{result.script}: {result.error}")
        else:
            report.write(output.compare_report(result, report))
    if page is not None:
        page.write(output.compare_page(result))
    return result.exit_status


def _refuse_two_targets(options: argparse.Namespace, command: str) -> None:
    if bool(options.script) == bool(options.module):
        raise UsageError(f"{command} takes either a script or -m MODULE")


_COMPARED = ("max-windows", "timeout", "loss-coefficient", "rtol", "atol")
"""The settings of runs that hold for those which are compared."""


def _settings_of_run(options: argparse.Namespace) -> Settings:
    """What holds for a script, as it does for lint; for a module that is run, what holds where it is run."""
    from gradcheck_accum.settings import settings_for, with_codes

    settings = settings_for([options.script or os.curdir]).of_verify()
    return with_codes(settings, select=options.select, ignore=options.ignore, called="--{}")


def _told_of_run(
    options: argparse.Namespace, settings: Settings, of: Iterable[str] = tuple(RUN_SETTINGS)
) -> dict[str, Any]:
    """What a run is told, by the names of ``verify_script``: what is given, and else what the settings say.

    ``of`` are the settings that the command has.
    """
    names = [name.replace("-", "_") for name in of]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    usual: dict[str, Any] = {name: False for name in ("trajectory", "verbose") if name in names}
    settled = {name: value for name, value in settings.verify.options.items() if name in names}
    told = {**usual, **settled, **given}
    try:
        refuse_clashes(told, "--{}".format)
    except OptionError as error:
        raise UsageError(str(error)) from None
    return told


def _explain(options: argparse.Namespace) -> int:
    from gradcheck_accum.report.explain_text import explain_text
    from gradcheck_accum.report.wrap import WIDTH
    from gradcheck_accum.rule_pages import find_mistake, read_page

    mistake = find_mistake(options.rule)
    if mistake is None:
        near = did_you_mean(options.rule, rule_names())
        raise UsageError(f"no rule is called '{options.rule}' ({PROGRAM} rules lists them){near}")
    page = read_page(mistake)
    if page is None:
        raise UsageError(f"{mistake.code} has no page")
    screen = output.Output("text", sys.stdout)
    streams.write(explain_text(page, paint=screen.paint, width=screen.width or WIDTH))
    return OK


def _server(options: argparse.Namespace) -> int:
    _needs("server", "pygls")
    from gradcheck_accum.server import serve

    serve()
    return OK


def _rules(options: argparse.Namespace) -> int:
    if options.output_format == "json":
        from gradcheck_accum.report.as_json import rules_json

        streams.write(rules_json(CATALOGUE.values()))
    else:
        from gradcheck_accum.report.rules_text import rules_text

        streams.write(rules_text(CATALOGUE.values()))
    return OK
