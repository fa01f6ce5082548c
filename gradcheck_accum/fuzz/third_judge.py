"""The third judge of a generated loop: the loop itself at K = 1, as `compare` runs it.

Unlike the other two references, `compare` does not have to read the loop. Here only arithmetic decides what it must
report: if every step of the loop at K = 1 uses its large batch's gradient, that run is a valid reference for `compare`,
and the generated loop matches it exactly if each of its own steps is right too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gradcheck_accum.comparing import compared_loop
from gradcheck_accum.fuzz.agreement import Problem, execute
from gradcheck_accum.fuzz.oracle import simulations
from gradcheck_accum.fuzz.render import render
from gradcheck_accum.fuzz.variants import PLAIN, Variant
from gradcheck_accum.results.comparison import CompareResult
from gradcheck_accum.results.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Opinion:
    """What `compare` reports for a variant, whether that is wrong, and whether it leaves the question open."""

    verdict: Verdict
    problems: tuple[Problem, ...] = ()
    undecided: tuple[str, ...] = ()


def opinion(variant: Variant) -> Opinion | None:
    """What `compare` reports for ``variant`` and itself at K = 1; None if that is no valid reference for it."""
    large = at_one_micro_batch(variant)
    if large is None or not _is_right(large):
        return None
    result = _compared(large, variant)
    said = f"compare says {result.verdict.value} ({result.error or result.reason})"
    match result.verdict, _is_right(variant):
        case _ if result.error:
            return Opinion(result.verdict, (Problem("compare: error", said),))
        case Verdict.EQUIVALENT, False:
            problem = Problem("compare: false pass", f"{said}, but not every step is right")
        case Verdict.DEVIATES | Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, True:
            problem = Problem("compare: false alarm", f"{said}, but every step is right")
        case Verdict.INCONCLUSIVE, _:
            return Opinion(result.verdict, undecided=("compare: inconclusive",))
        case _:
            return Opinion(result.verdict)
    return Opinion(result.verdict, (problem,))


def at_one_micro_batch(variant: Variant) -> Variant | None:
    """The same loop at K = 1, each of its batches the rows of one of the windows of ``variant``.

    None if no other batch size and K are the same training: if data is drawn in the loop, if the source counts
    micro-batches (a warm-up, a skipped micro-batch, a second model with its own rate), if batches are rejected, if each
    micro-batch adds a penalty to a sum over its rows, or if samples influence each other.
    """
    v = variant
    counts = v.objective.warm_up is not None or v.rate is not None or v.has("GA303")
    adds_up = v.objective.penalty is not None and v.scale == "total"
    if v.made_in_loop or counts or adds_up or v.outliers or v.batch_norm or v.has("GA902"):
        return None
    if v.boundary == PLAIN or min(v.k, v.count) < 2:
        return None
    is_cut_by_itself = v.data_loader or v.boundary == "chunks"
    return replace(
        v, k=1, rows=_joined(v.rows, v.k), units=_joined(v.units, v.k), joins=None if is_cut_by_itself else v
    )


def _joined(counts: tuple[int, ...], k: int) -> tuple[int, ...]:
    return tuple(sum(counts[start : start + k]) for start in range(0, len(counts), k))


def _is_right(variant: Variant) -> bool:
    return all(run.is_right for run in simulations(variant))


@dataclass
class _Script:
    """A variant as an argument of a loop."""

    variant: Variant
    names: dict[str, object] = field(default_factory=dict)

    def run(self) -> None:
        execute(render(self.variant), self.names)


def _compared(*variants: Variant) -> CompareResult:
    return compared_loop(_Script.run, [{"self": _Script(variant)} for variant in variants])
