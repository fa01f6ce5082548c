"""``gradcheck-accum compare``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gradcheck_accum import output
from gradcheck_accum.cli.arguments import positive_int
from gradcheck_accum.cli.runs import add_accepted, add_judging, and_a_page, asked_of_run, ended_politely
from gradcheck_accum.cli.status import OK, PROGRAM, complain, needs
from gradcheck_accum.errors import UsageError

if TYPE_CHECKING:
    from gradcheck_accum.results.comparison import CompareResult

CONFIGURATION = "--with"
"""The option whose value is the arguments of the script in one configuration."""

_COMPARED = ("max-windows", "timeout", "loss-coefficient", "rtol", "atol")
"""The settings of runs that also apply to compared runs."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = f"{PROGRAM} compare [options] (SCRIPT | -m MODULE) --with ARGS --with ARGS [-- ARGS ...]"
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        nargs="?",
        help="training script; arguments common to all configurations go after --",
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module instead of a script, like python -m")
    parser.add_argument(
        CONFIGURATION,
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
        help="values of one argument in the configurations, instead of --with (accum=1,2,8)",
    )
    parser.add_argument(
        "--free",
        action="store_true",
        help="let every configuration train its own weights instead of using the reference's",
    )
    parser.add_argument("--no-dropout", action="store_true", help="disable dropout in every configuration")
    add_accepted(parser)
    parser.add_argument("--max-windows", metavar="N", type=positive_int, help="stop after this many optimizer steps")
    add_judging(parser)
    output.add_output(parser, output.COMPARE_FORMATS, "print only the verdict and its causes, and nothing for a pass")
    output.add_page(parser)
    parser.epilog = "defaults can be set in [tool.gradcheck-accum.verify] of pyproject.toml"
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Run the configurations, report how their steps differ, and return the exit status."""
    from gradcheck_accum.comparing import BadConfigurations, compare_script, configurations

    settings, given = asked_of_run(options, "compare", of=_COMPARED)
    try:
        each = configurations(options.configurations, options.vary)
    except BadConfigurations as error:
        raise UsageError(str(error)) from None
    needs("compare", "torch")
    output.needs_for_page(options)
    page = output.page_file(options)
    from gradcheck_accum.results.acceptance import Acceptance
    from gradcheck_accum.verify import is_other_rank

    def measured() -> CompareResult:
        with ended_politely():
            return compare_script(
                options.script,
                each,
                options.arguments or [],
                module=options.module,
                free=options.free,
                no_dropout=options.no_dropout,
                by=Acceptance(settings),
                **given,
            )

    if is_other_rank():
        measured()
        return OK  # rank 0 reports for all ranks
    with output.opened(options) as report:
        result = measured()
        with and_a_page(page, lambda: output.compare_page(result)):
            if result.error and report.form in output.FOR_PEOPLE:
                complain(f"{result.script}: {result.error}")
            else:
                report.write(output.compare_report(result, report))
    return result.exit_status
