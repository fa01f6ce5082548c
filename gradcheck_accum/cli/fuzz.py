"""``gradcheck-accum fuzz``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from gradcheck_accum import streams
from gradcheck_accum.cli.arguments import positive, positive_int, whole
from gradcheck_accum.cli.status import INTERRUPTED, PROGRAM, needs
from gradcheck_accum.errors import UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "target",
        metavar="FILE.py::LOOP",
        nargs="?",
        help="a training function, whose arguments are supplied by name (default: test lint and verify on generated "
        "loops)",
    )
    parser.add_argument(
        "--factories", metavar="FILE.py", help="module whose functions supply the arguments of the same names"
    )
    parser.add_argument(
        "--examples",
        metavar="N",
        type=positive_int,
        help="number of cases (default: from the active Hypothesis profile)",
    )
    parser.add_argument(
        "--seed", metavar="S", type=whole, help="random seed (default: from the active Hypothesis profile)"
    )
    parser.add_argument(
        "--time-budget", metavar="SECONDS", type=positive, help="start no new case after this many seconds"
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Search, report what was found, and return the exit status."""
    for package in ("torch", "hypothesis"):
        needs("fuzz", package)
    if options.target == "":
        raise UsageError("the target is empty (an unset variable?)")
    from gradcheck_accum.report.fuzz_text import campaign_text, loop_text
    from gradcheck_accum.report.progress import ProgressBar
    from gradcheck_accum.results.fuzzing import Campaign, Interrupted

    progress = ProgressBar(sys.stderr, "cases")
    try:
        return _run_target(options, progress) if options.target else _run_engines(options, progress)
    except Interrupted as cut:
        progress.clear()
        streams.write(campaign_text(cut.so_far) if isinstance(cut.so_far, Campaign) else loop_text(cut.so_far))
        print(f"{PROGRAM}: interrupted: these are the results so far", file=sys.stderr)
        return INTERRUPTED
    finally:
        progress.clear()


def _run_target(options: argparse.Namespace, progress: Callable[[int, int], None]) -> int:
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


def _run_engines(options: argparse.Namespace, progress: Callable[[int, int], None]) -> int:
    if options.factories:
        raise UsageError("--factories requires FILE.py::LOOP")
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
