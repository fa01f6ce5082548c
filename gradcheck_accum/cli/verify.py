"""``gradcheck-accum verify``."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradcheck_accum import output
from gradcheck_accum.cli.arguments import memory_budget, positive_int
from gradcheck_accum.cli.runs import add_accepted, add_judging, and_a_page, asked_of_run, ended_politely
from gradcheck_accum.cli.status import OK, PROGRAM, complain, needs
from gradcheck_accum.run_options import DTYPES, REFERENCES

if TYPE_CHECKING:
    from gradcheck_accum.results.verdict import VerifyResult


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = f"{PROGRAM} verify [options] (SCRIPT | -m MODULE) [-- ARGS ...]"
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help="training script; its arguments go after --")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module instead of a script, like python -m")
    parser.add_argument("--max-windows", metavar="N", type=positive_int, help="stop after this many optimizer steps")
    parser.add_argument(
        "--reference",
        choices=REFERENCES,
        help="ledger: the micro-batches' own gradients, correctly weighted; replay: the window's data, run again as "
        "one large batch; sketch: like ledger, with random projections instead of copies of the gradients (default: "
        "both, or sketch if memory is short)",
    )
    parser.add_argument(
        "--memory-budget",
        metavar="SIZE",
        type=memory_budget,
        help="memory to use in addition to the loop's (800MB, 1.5GiB, 50%% of free memory; default: all free memory)",
    )
    parser.add_argument("--dtype", choices=DTYPES, help="dtype of the replay (default: the model's)")
    parser.add_argument("--device", help="device of the replay (cpu, cuda, cuda:1; default: the model's)")
    add_accepted(parser)
    add_judging(parser)
    parser.add_argument(
        "--trajectory",
        action=argparse.BooleanOptionalAction,
        help="also train a reference on true large batches and report how far the weights drift from it",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action=argparse.BooleanOptionalAction,
        help="also report the references, their settings and their cost",
    )
    output.add_output(parser, output.VERIFY_FORMATS, "print only the verdict and its causes, and nothing for a pass")
    output.add_page(parser)
    parser.epilog = "defaults can be set in [tool.gradcheck-accum.verify] of pyproject.toml"
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Run the script, report what was measured, and return the exit status."""
    settings, given = asked_of_run(options, "verify")
    needs("verify", "torch")
    output.needs_for_page(options)
    from gradcheck_accum.results.acceptance import Acceptance, accepted
    from gradcheck_accum.verify import is_orphan, is_other_rank

    verbose = given.pop("verbose")
    acceptance = Acceptance(settings)
    if is_other_rank():
        # Rank 0 reports for all ranks; a launcher would kill it if another rank failed first.
        result = _measured(options, given)
        return complain(f"{result.script}: {result.error}") if is_orphan(result.error) else OK
    page = output.page_file(options)
    with output.opened(options, verbose=verbose) as report:
        result = _with_settling(accepted(_measured(options, given), acceptance), options)
        with and_a_page(page, lambda: output.verify_page(result)):
            if result.error and not result.windows and report.form in output.FOR_PEOPLE:
                complain(f"{result.script}: {result.error}")
            else:
                report.write(output.verify_report(result, report))
    return result.exit_status


def _measured(options: argparse.Namespace, given: dict[str, Any]) -> VerifyResult:
    from gradcheck_accum.verify import verify_script

    with ended_politely():
        return verify_script(options.script, options.arguments or [], module=options.module, **given)


def _with_settling(result: VerifyResult, options: argparse.Namespace) -> VerifyResult:
    """The result. If it is undecided, it names the command that would decide it, if the script's arguments show one."""
    from gradcheck_accum.results.verdict import Verdict

    if result.verdict is not Verdict.INCONCLUSIVE or not result.windows:
        return result
    from gradcheck_accum.comparing.proposal import proposed

    name, is_module = options.script or options.module, options.module is not None
    return replace(result, settled_by=proposed(name, options.arguments or [], is_module=is_module))
