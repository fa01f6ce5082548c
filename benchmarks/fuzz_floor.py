"""What the scripts of a fuzzing campaign cost by themselves, beside what a variant costs through both engines.

    python benchmarks/fuzz_floor.py [--variants 200] [--seed 0]

One process, in batches of variants as a campaign draws them. Each part is processor time for each variant: writing the
script, running its text and nothing else (once as it is, once under Python's profiler, which says where that time
goes), running it watched, linting it. No engine can be faster than the scripts alone.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import io
import pstats
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from gradcheck_accum.fuzz.agreement import PATH, compare, execute
from gradcheck_accum.fuzz.agreement import run as watched
from gradcheck_accum.fuzz.render import render
from gradcheck_accum.fuzz.strategies import variants
from gradcheck_accum.fuzz.variants import Variant
from gradcheck_accum.lint.examination.examine import examine


def drawn(count: int, number: int) -> list[Variant]:
    """Variants as a campaign draws them."""
    found: list[Variant] = []

    def keep(variant: Variant) -> None:
        found.append(variant)

    run = given(variant=variants(widened=True))(keep)
    settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )(seed(number)(run))()
    return found


def alone(text: str) -> None:
    """Run a script and nothing else."""
    names: dict[str, object] = {}
    execute(text, names)
    names.clear()


def seconds(work: Callable[[], object]) -> float:
    """The processor time of some work."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main() -> None:
    """Print the parts, and where the time of the scripts alone goes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = drawn(options.variants, options.seed)
    compare(chosen[0])
    spent: dict[str, float] = defaultdict(float)
    gc.disable()
    for variant in chosen:
        gc.collect()
        gc.freeze()
        text = render(variant)
        spent["write"] += seconds(partial(render, variant))
        spent["the script alone"] += seconds(partial(alone, text))
        spent["watched, up to its verdict"] += seconds(partial(watched, text, replay=variant.batch_norm))
        spent["lint"] += seconds(partial(examine, text, PATH))
        spent["both engines and the comparison"] += seconds(partial(compare, variant))
    for what, total in spent.items():
        each = total / len(chosen)
        print(f"{what}: {1000 * each:.1f} ms a variant, {1 / each:.1f} a second")
    profile = cProfile.Profile()
    profile.enable()
    for variant in chosen:
        alone(render(variant))
    profile.disable()
    report = io.StringIO()
    pstats.Stats(profile, stream=report).sort_stats("tottime").print_stats(12)
    print(report.getvalue())


if __name__ == "__main__":
    main()
