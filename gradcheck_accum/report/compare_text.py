"""What ``compare`` measured, for people: the verdict, what to do, each configuration with its steps, and the causes."""

from __future__ import annotations

from gradcheck_accum.report.frame import Sources
from gradcheck_accum.report.paint import PLAIN, Paint
from gradcheck_accum.report.verify_table import STYLES, table, windows_text
from gradcheck_accum.report.verify_text import accepted_line, action, chosen, diagnosis_lines, verdict_line
from gradcheck_accum.report.words import plural, shown_path
from gradcheck_accum.report.wrap import WIDTH, labelled
from gradcheck_accum.results.comparison import Compared, CompareResult, Configuration, Difference
from gradcheck_accum.results.verdict import Verdict, VerifyResult

_NOT_MEASURED = ("relative weights", "units")
"""Columns of `verify`'s table that no second run can fill."""


def compare_text(
    result: CompareResult,
    sources: Sources | None = None,
    paint: Paint = PLAIN,
    *,
    quiet: bool = False,
    width: int = WIDTH,
) -> str:
    """The whole report; sentences are broken at ``width``, but never those that name a place.

    ``quiet`` leaves the verdict, what to do and the causes, and nothing about what is equivalent.
    """
    if quiet and not result.exit_status:
        return ""
    sources = sources or Sources()
    blocks = [[verdict_line(result, result.reason, paint), *_help(result, paint, width)]]
    if result.reference is not None and not quiet:
        blocks.append(labelled("reference:", made_of(result.reference), width, paint))
    for one in result.compared:
        head, causes, notes = _compared(one, result, sources, paint, width)
        blocks += causes if quiet else [*head, *causes, *notes]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _help(result: CompareResult, paint: Paint, width: int) -> list[str]:
    if result.help:
        return labelled("help:", result.help, width, paint)
    for one in result.compared:
        first = chosen(one.watched) if one.watched is not None and one.verdict is Verdict.DEVIATES else None
        if one.watched is not None and first is not None:
            return action(one.watched, first, paint, width)
    return []


def made_of(configuration: Configuration) -> str:
    """A configuration, and what most of its steps are made of."""
    if configuration.micro_batches is None:
        return configuration.name
    rows = "" if configuration.rows is None else f", {plural(configuration.rows, 'row')} together"
    many = plural(configuration.micro_batches, "micro-batch")
    on_ranks = f" on {configuration.ranks} ranks" if configuration.ranks > 1 else ""
    steps = plural(configuration.steps, "step")
    if len(configuration.steps_by_epoch) > 1:
        steps += f" in {len(configuration.steps_by_epoch)} epochs,"
    return f"{configuration.name} ({steps} of {many}{on_ranks}{rows})"


def _compared(
    one: Compared, result: CompareResult, sources: Sources, paint: Paint, width: int
) -> tuple[list[list[str]], list[list[str]], list[list[str]]]:
    """What a configuration is and how its steps are, what is wrong with it and why, and notes."""
    head = labelled("compared:", made_of(one.configuration), width, paint)
    if len(result.compared) > 1:
        head += labelled(f"{one.verdict.value}:", one.reason, width, paint, STYLES.get(one.verdict, "yellow"))
    if one.steps:
        head += table(one.steps, paint, width, without=_NOT_MEASURED)
    causes = [[_difference(difference, paint) for difference in one.differences if not difference.accepted]]
    waived = [accepted_line(each, paint) for each in one.accepted]
    waived += [f"{paint('yellow', 'accepted:')} {_difference(d, paint)}" for d in one.differences if d.accepted]
    notes = [waived, [line for note in one.notes for line in labelled("note:", note, width, paint)]]
    if one.watched is not None:
        first = chosen(one.watched) if one.verdict is Verdict.DEVIATES and not result.help else None
        causes += [diagnosis_lines(d, sources, paint, width, helped=d is first) for d in one.watched.diagnosis]
        if one.disagrees:
            causes.append(labelled("verify disagrees:", disagreement(one.watched), width, paint, "yellow"))
    return [head, _reasons(one, paint, width)], causes, notes


def disagreement(watched: VerifyResult) -> str:
    """The sentence that is shown where ``verify`` has another verdict on the same run."""
    return (
        f"verify's verdict on the same run is {watched.verdict.value} ({watched.reason}); the verdict here was "
        "measured against the reference"
    )


def reasons_of_steps(one: Compared) -> dict[str, list[int]]:
    """The reasons for the verdicts on steps, each once, without those that the verdict on the run states already."""
    alike: dict[str, list[int]] = {}
    for step in one.steps:
        if step.reason and not one.reason.endswith(step.reason):
            alike.setdefault(step.reason, []).append(step.index)
    return alike


def _reasons(one: Compared, paint: Paint, width: int) -> list[str]:
    lines: list[str] = []
    for reason, steps in reasons_of_steps(one).items():
        lines += labelled(f"{windows_text(steps)}:", reason, width, paint, "dim")
    return lines


def _difference(difference: Difference, paint: Paint) -> str:
    place = f"{paint('bold', shown_path(difference.path))}:{difference.line}: " if difference.path else ""
    return f"{place}{paint('red', difference.kind)}: {difference.message}"
