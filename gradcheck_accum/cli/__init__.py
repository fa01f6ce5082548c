"""The command line. Engines and reports are imported by the command that needs them: ``--help`` costs no more.

Exit status: 0 nothing found or equivalent; 1 findings, or the run deviates; 2 usage, unreadable input, or an error of
ours; 3 not decided.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence

from gradcheck_accum import __version__, output, streams
from gradcheck_accum.cli import catalogue, compare, fuzz, lint, verify
from gradcheck_accum.cli.arguments import Parser
from gradcheck_accum.cli.script_arguments import complaint_of_unknown, joined, split
from gradcheck_accum.cli.status import BROKEN_PIPE, ERROR, INTERRUPTED, OK, PROGRAM, complain, needs
from gradcheck_accum.errors import UsageError, internal_error, wants_tracebacks
from gradcheck_accum.streams import StreamError

_Command = Callable[[argparse.Namespace], int]

_RUN_A_SCRIPT = (verify.run, compare.run)
"""The commands that pass arguments on to a script."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    try:
        streams.prepare()
        status = _run(sys.argv[1:] if arguments is None else list(arguments))
        streams.flush()
        return status
    except (UsageError, StreamError) as error:
        return complain(str(error))
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`).
        streams.discard_stdout()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if wants_tracebacks():
            raise
        return complain(internal_error(error))


def _run(arguments: list[str]) -> int:
    own, for_script = split(arguments)
    parser = command_line()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions, using argcomplete's protocol
        with contextlib.suppress(ImportError):
            from argcomplete import autocomplete

            autocomplete(parser)  # ends here
    if not arguments:
        parser.print_help(sys.stderr)
        return ERROR
    try:
        options, unknown = parser.parse_known_args(joined(own, compare.CONFIGURATION))
    finally:
        streams.flush()  # --help and --version end here
    options.arguments = for_script
    if unknown:
        if options.command in _RUN_A_SCRIPT:
            raise UsageError(complaint_of_unknown(own, options, unknown))
        options.parser.refuse(unknown)
    if for_script is not None and options.command not in _RUN_A_SCRIPT:
        raise UsageError("only verify and compare accept arguments after --")
    command: _Command = options.command
    return command(options)


def command_line() -> argparse.ArgumentParser:
    """The parser of the whole command line, with a parser for each command."""
    parser = Parser(
        prog=PROGRAM,
        description="Does the gradient at every optimizer.step() equal that of the true large batch?",
        epilog="exit status: 0 nothing found / equivalent; 1 findings / deviates; 2 usage, unreadable input or an "
        "internal error; 3 not decided",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    lint.add_options(commands.add_parser("lint", help="analyze training scripts without running them"))
    verify.add_options(commands.add_parser("verify", help="run a training script and measure its gradients"))
    compare.add_options(
        commands.add_parser("compare", help="run a script with different K and batch sizes and compare the steps")
    )
    fuzz.add_options(commands.add_parser("fuzz", help="search for data that a training loop handles wrongly"))
    explain = commands.add_parser("explain", help="print the documentation of a mistake")
    explain.add_argument("rule", metavar="CODE|NAME")
    explain.set_defaults(command=catalogue.explain)
    rules = commands.add_parser("rules", help="list all mistakes")
    output.add_format(rules, output.RULES_FORMATS)
    rules.set_defaults(command=catalogue.list_rules)
    server = commands.add_parser("server", help="a language server on standard input and output, for editors")
    server.set_defaults(command=_server)
    for own in commands.choices.values():
        own.set_defaults(parser=own)
    return parser


def _server(options: argparse.Namespace) -> int:
    needs("server", "pygls")
    from gradcheck_accum.server import serve

    serve()
    return OK
