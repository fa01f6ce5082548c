"""The results of fuzzing, for people: the smallest failing cases with their tests, or a campaign's counts."""

from __future__ import annotations

from gradcheck_accum.report.words import plural
from gradcheck_accum.results.fuzzing import Campaign, Disagreement, LoopTrial, Tally, TrialOutcome


def loop_text(trial: LoopTrial) -> str:
    """The report on one loop."""
    blocks = []
    for failure in trial.failures:
        blocks.append(f"{failure.case}: {failure.what}\n\n{_indented(failure.test)}")
    counted = ", ".join(f"{many} {outcome.value}" for outcome, many in trial.outcomes.items())
    total = plural(trial.outcomes.total(), "case")
    if not trial.failures:
        verdict = "equivalent" if trial.exit_status == 0 else "not decided"
        return f"{trial.target}: {verdict} in all of {total}"
    worst = min(trial.failures, key=lambda failure: list(TrialOutcome).index(failure.outcome))
    return "\n\n".join([*blocks, f"{trial.target}: {worst.outcome.value} ({total}: {counted})"])


def campaign_text(campaign: Campaign) -> str:
    """The report on a campaign over the built-in loop variants."""
    blocks = [_disagreement(one) for one in campaign.disagreements]
    blocks.append("\n".join(_tally(campaign.tally)))
    many = len(campaign.disagreements)
    kinds = f"{plural(many, 'kind')} of disagreement"
    blocks.append("the engines agree on every variant" if not many else kinds)
    return "\n\n".join(blocks)


def _tally(tally: Tally) -> list[str]:
    total = max(tally.variants, 1)
    lines = [
        f"{plural(tally.variants, 'variant')} ({tally.clean} without a mistake, {tally.fixed} fixed and run again) in "
        f"{tally.seconds:.0f} s of CPU time, {tally.variants / max(tally.seconds, 1e-9):.1f} a second",
        f"lint does not know every weight of {tally.unknown} ({tally.unknown / total:.1%})",
        *_compared(tally),
        "",
        f"{'boundary':16} variants  unknown to lint",
    ]
    lines += [f"{name:16} {many:>8}  {tally.unknown_at[name]:>15}" for name, many in sorted(tally.boundaries.items())]
    if tally.features:
        lines += ["", f"{'dimension':24} variants  left undecided"]
        lines += [f"{name:24} {n:>8}  {tally.undecided_by[name]:>14}" for name, n in sorted(tally.features.items())]
    lines += ["", f"{'mistake':16} variants  left undecided  found by verify  found by lint"]
    for name, many in sorted(tally.mutations.items()):
        cells = [
            f"{tally.killed[engine, name]} of {tally.demanded[engine, name]}" if tally.demanded[engine, name] else "-"
            for engine in ("verify", "lint")
        ]
        lines.append(f"{name:16} {many:>8}  {tally.undecided_by[name]:>14}  {cells[0]:>15}  {cells[1]:>13}")
    for title, counts in (("left undecided", tally.undecided), ("disagreement", tally.problems)):
        if counts:
            width = max(len(title), *(len(kind) for kind in counts))
            lines += ["", f"{title:{width}} variants", *(f"{k:{width}} {n:>8}" for k, n in sorted(counts.items()))]
    return lines


def _compared(tally: Tally) -> list[str]:
    if not tally.compared:
        return []
    counted = ", ".join(f"{many} {verdict}" for verdict, many in sorted(tally.compared.items()))
    return [f"{tally.compared.total()} were compared with themselves at K = 1: {counted}"]


def _disagreement(one: Disagreement) -> str:
    """A program on which the engines disagree, with both ledgers side by side."""
    width = max([len(line) for line in one.static] + [len("lint")])
    rows = max(len(one.static), len(one.dynamic))
    ledgers = [f"{'lint':{width}}  verify"] if rows else []
    for row in range(rows):
        left = one.static[row] if row < len(one.static) else "-"
        right = one.dynamic[row] if row < len(one.dynamic) else "-"
        ledgers.append(f"{left:{width}}  {right}")
    numbered = [f"{number:>4} {line}".rstrip() for number, line in enumerate(one.source.splitlines(), 1)]
    return "\n".join([*one.problems, "", *numbered, "", *ledgers])


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())
