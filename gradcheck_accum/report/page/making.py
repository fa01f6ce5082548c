"""What a page says and in which order, from a result's public values: the verdict first, and the one thing to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gradcheck_accum import __version__
from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.report.compare_text import disagreement, made_of, reasons_of_steps
from gradcheck_accum.report.frame import Sources
from gradcheck_accum.report.page.charts import Chart, Drawer
from gradcheck_accum.report.page.ledger_picture import Picture, Row, numbers, picture
from gradcheck_accum.report.page.listing import Mark, listings
from gradcheck_accum.report.page.text import visible
from gradcheck_accum.report.verify_table import windows_text
from gradcheck_accum.report.verify_text import chosen, reason_in_short, reasons
from gradcheck_accum.report.words import error, plural, shown_path
from gradcheck_accum.results.comparison import Compared, CompareResult, Difference
from gradcheck_accum.results.verdict import Accepted, ByParameter, Verdict, VerifyResult, WindowReport

_UNITS = 6
"""Optimizers whose windows are drawn."""

_SIDES = 6
"""Configurations that are drawn in addition to the reference."""

_SENTENCES = 24
"""Reasons, notes and causes of a part, each."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the source as text, and where the page shows it (empty where it does not)."""

    text: str
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Cause:
    """A mistake or a difference. ``by`` says who has accepted it, where somebody has."""

    label: str
    name: str
    severity: str
    place: Place
    message: str
    seen: str = ""
    help: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Dissected:
    """The error of one window by parameter."""

    window: int
    window_error: str
    chart: Chart | None
    found: ByParameter


@dataclass(frozen=True, slots=True)
class Unit:
    """The windows of one optimizer."""

    name: str
    counted: str
    windows: Sequence[WindowReport]
    picture: Picture | None
    rows: Sequence[Row]
    left_out: str
    errors: Chart | None
    drift: Chart | None
    dissected: Dissected | None
    verdicts: frozenset[str]


@dataclass(slots=True)
class Part:
    """A run: what was found in it, and the pictures of it. ``title`` is nothing where the page has no other."""

    title: str = ""
    verdict: Verdict | None = None
    reason: str = ""
    disagrees: str = ""
    causes: list[Cause] = field(default_factory=list)
    accepted: list[Cause] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    other_units: list[str] = field(default_factory=list)
    cost: Chart | None = None
    reasons: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: str = ""
    is_compared: bool = False
    """Whether it was compared with another run, and has neither weights nor a cost."""


@dataclass(slots=True)
class _Page:
    """What is gathered while a page is made."""

    marks: list[Mark] = field(default_factory=list)
    drawer: Drawer = field(default_factory=Drawer)


def verify_page(result: VerifyResult, sources: Sources | None = None) -> str:
    """The page of one run."""
    page = _Page()
    first = chosen(result)
    part = _watched(result, page)
    todo = (first.help, _place(first.where), first.mistake.code) if first is not None else (result.help, None, "")
    facts = [
        ("windows watched", f"{len(result.windows):,}"),
        *([("ranks", str(result.ranks))] if result.ranks > 1 else []),
        ("trained on", result.device or "an unknown device"),
        *_reference(result),
    ]
    return _rendered(
        page,
        sources or Sources(),
        command="verify",
        script=shown_path(result.script),
        verdict=result.verdict,
        reason=result.error or reason_in_short(result),
        failed=bool(result.error),
        todo=todo,
        settled_by=result.settled_by,
        facts=facts if result.windows or not result.error else [],
        parts=[part],
    )


def compare_page(result: CompareResult, sources: Sources | None = None) -> str:
    """The page of one comparison."""
    page = _Page()
    parts = [part for one in result.compared[:_SIDES] for part in _compared(one, page)]
    reference = [("reference", made_of(result.reference))] if result.reference is not None else []
    compared = [("compared", made_of(one.configuration)) for one in result.compared[:_SIDES]]
    left = len(result.compared) - _SIDES
    return _rendered(
        page,
        sources or Sources(),
        command="compare",
        script=shown_path(result.script),
        verdict=result.verdict,
        reason=result.error or result.reason,
        failed=bool(result.error),
        todo=_todo(result),
        settled_by="",
        facts=[*reference, *compared, *([("not shown", plural(left, "more configuration"))] if left > 0 else [])],
        parts=parts,
    )


def _todo(result: CompareResult) -> tuple[str, Place | None, str]:
    if result.help:
        return result.help, None, ""
    for one in result.compared:
        first = chosen(one.watched) if one.watched is not None and one.verdict is Verdict.DEVIATES else None
        if first is not None:
            return first.help, _place(first.where), first.mistake.code
    return "", None, ""


def _reference(result: VerifyResult) -> list[tuple[str, str]]:
    reference = result.reference
    if not reference.dtype:
        return []
    settings = f" ({reference.settings})" if reference.settings else ""
    why = f"; {reference.why}" if reference.why else ""
    return [("compared with", f"{reference.kind}, in {reference.dtype} on {reference.device}{settings}{why}")]


def _watched(result: VerifyResult, page: _Page, title: str = "") -> Part:
    """What ``verify`` says of one run."""
    part = Part(title)
    shown, said = _limited(result.diagnosis)
    part.causes = [_cause(one, page) for one in shown]
    part.accepted = [_accepted(one, page) for one in result.accepted[:_SENTENCES]]
    part.left_out = f"{said} are not shown" if said else ""
    _add_units(part, result.windows, page)
    part.cost = page.drawer.cost(result.cost) if result.cost is not None else None
    part.reasons = _grouped(reasons(result))
    # The cost, of which a detail speaks, is drawn.
    part.notes = _cut([note for note in dict.fromkeys(result.notes) if note not in result.details], "note")
    return part


def _compared(one: Compared, page: _Page) -> list[Part]:
    """A configuration compared with the reference, and ``verify``'s result for the same run."""
    part = Part(made_of(one.configuration), one.verdict, one.reason, is_compared=True)
    differences = [_difference(difference, page) for difference in one.differences[:_SENTENCES]]
    part.causes = [difference for difference in differences if not difference.by]
    part.accepted = [_accepted(each, page) for each in one.accepted[:_SENTENCES]]
    part.accepted += [difference for difference in differences if difference.by]
    _add_units(part, one.steps, page)
    part.reasons = _grouped(reasons_of_steps(one))
    part.notes = _cut(list(dict.fromkeys(one.notes)), "note")
    if one.watched is None:
        return [part]
    part.disagrees = disagreement(one.watched) if one.disagrees else ""
    own = _watched(one.watched, page, f"The same run as seen by verify: {one.configuration.name}")
    own.accepted = []  # shown above already
    return [part, own]


def _add_units(part: Part, windows: Sequence[WindowReport], page: _Page) -> None:
    """The windows by optimizer; where there are too many optimizers, those with wrong windows come first."""
    by_optimizer: dict[str, list[WindowReport]] = {}
    for window in windows:
        by_optimizer.setdefault(window.optimizer, []).append(window)
    order = sorted(by_optimizer, key=lambda name: not any(_is_wrong(w) for w in by_optimizer[name]))
    chosen_ones = set(order[:_UNITS])
    for name, own in by_optimizer.items():
        if name in chosen_ones:
            part.units.append(_unit(name, own, page, "step" if part.is_compared else "window"))
        else:
            tally = {verdict: sum(w.verdict is verdict for w in own) for verdict in Verdict}
            said = ", ".join(f"{many} {verdict.value}" for verdict, many in tally.items() if many)
            part.other_units.append(f"{name}: {said}")
    if len(part.other_units) > _SENTENCES:
        left = len(part.other_units) - _SENTENCES
        part.other_units[_SENTENCES:] = [f"{plural(left, 'more optimizer')}"]


def _is_wrong(window: WindowReport) -> bool:
    return window.verdict is not Verdict.EQUIVALENT


def _unit(name: str, windows: Sequence[WindowReport], page: _Page, noun: str) -> Unit:
    rows, left_out = numbers(windows)
    steps = sorted({(w.path, w.line) for w in windows if w.path and w.line})
    page.marks += [Mark(Location(*step), "step", f"{name} steps here") for step in steps[:_SENTENCES]]
    taken = [(w, w.by_parameter) for w in windows if w.by_parameter is not None]
    dissected = None
    if taken:
        window, found = max(taken, key=lambda pair: pair[0].grad_rel_error or 0.0)
        chart = page.drawer.parameters(found)
        dissected = Dissected(window.index, error(window.grad_rel_error), chart, found)
    return Unit(
        name,
        plural(len(windows), noun),
        windows,
        picture(windows),
        rows,
        left_out,
        page.drawer.errors(windows),
        page.drawer.line(windows, [w.drift for w in windows], "drift of the weights"),
        dissected,
        frozenset(w.verdict.value for w in windows if w.grad_rel_error is not None),
    )


def _cause(one: Diagnosis, page: _Page, kind: str = "found", by: str = "") -> Cause:
    mistake = one.mistake
    page.marks.append(Mark(one.where, kind, f"{mistake.code} {mistake.name}", one.in_words))
    return Cause(
        mistake.code,
        mistake.name,
        mistake.severity.value,
        _place(one.where),
        one.in_words,
        windows_text(one.windows) if one.windows else "",
        one.help,
        by,
    )


def _accepted(one: Accepted, page: _Page) -> Cause:
    return _cause(one.diagnosis, page, "accepted", one.by)


def _difference(one: Difference, page: _Page) -> Cause:
    where = Location(one.path, one.line) if one.path else None
    if where is not None:
        page.marks.append(Mark(where, "accepted" if one.accepted else "differs", one.kind, one.message))
    return Cause("differs", one.kind, "error", _place(where) if where else Place(""), one.message, by=one.accepted)


def _place(where: Location) -> Place:
    cell = f":cell {where.cell}" if where.cell else ""
    return Place(f"{shown_path(where.path)}{cell}:{where.line}", f"{where.path}\0{where.cell}\0{where.line}")


def _limited(all_of_them: Sequence[Diagnosis]) -> tuple[Sequence[Diagnosis], str]:
    left = len(all_of_them) - _SENTENCES
    return all_of_them[:_SENTENCES], plural(left, "more cause") if left > 0 else ""


def _grouped(why: Mapping[str, Sequence[int]]) -> list[tuple[str, str]]:
    found = [(windows_text(windows), reason) for reason, windows in list(why.items())[:_SENTENCES]]
    left = len(why) - len(found)
    return [*found, ("…", plural(left, "more reason"))] if left else found


def _cut(sentences: Sequence[str], noun: str) -> list[str]:
    left = len(sentences) - _SENTENCES
    return [*sentences[:_SENTENCES], f"… {plural(left, f'more {noun}')}"] if left > 0 else list(sentences)


def _rendered(page: _Page, sources: Sources, **context: Any) -> str:
    files, unseen = listings(page.marks, sources)
    places = {
        f"{mark.where.path}\0{mark.where.cell}\0{line.number}": f"{file.anchor}-{line.number}"
        for file in files
        for line in file.lines
        for mark in line.marks
    }
    environment = Environment(
        loader=PackageLoader("gradcheck_accum.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters.update({"error": error, "windows": windows_text})
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    template = environment.get_template("page.html")
    return template.render(files=files, unseen=unseen, places=places, made=made, version=__version__, **context)


def _shown(value: Any) -> Any:
    """A value for a page: text without characters that no page can show."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
