"""The charts of a page: drawn by matplotlib, and put into the page as SVG whose colors are the page's own.

Why matplotlib: most people who train models have it; it draws SVG without a browser, a script or a server (a chart has
about 15 kB; what Bokeh, Plotly or Vega put into a page runs scripts of megabytes), text stays text, and its interface
has been the same for years. It knows one set of colors only, where a page has one for light and one for dark: charts
are drawn in colors that stand for names, and the names are put in their place.
"""

from __future__ import annotations

import io
import math
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib.style
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from gradcheck_accum.report.page.text import shortened, visible
from gradcheck_accum.report.words import error
from gradcheck_accum.results.verdict import ByParameter, CostReport, Verdict, WindowReport
from gradcheck_accum.wording import amount_of_memory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, GRID, BAD, GOOD, OPEN, ACCENT, OTHER = (f"#0{i}0{i}0{i}" for i in range(1, 9))
_COLOR = re.compile("#[0-9a-f]{6}")
_NAMES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    BAD: "var(--bad)",
    GOOD: "var(--good)",
    OPEN: "var(--open)",
    ACCENT: "var(--accent)",
    OTHER: "var(--other)",
}
"""Colors that stand for the page's own, whichever they are where it is read."""

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gradcheck-accum",
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "figure.facecolor": "none",
    "font.size": 10,
    "lines.linewidth": 1.4,
    "path.simplify": True,
}

_POINTS = 160
"""Points of a line; of a longer run each stands for as many windows as it takes."""

_BARS = 12
_LONGEST_NAME = 24
_WIDTH, _HEIGHT = 4.2, 2.6

_MARKS = {
    Verdict.DEVIATES: (BAD, "X"),
    Verdict.EQUIVALENT: (GOOD, "o"),
    Verdict.INCONCLUSIVE: (OPEN, "D"),
    Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION: (OPEN, "^"),
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, and what it shows in words: for those who do not see it, and a note on it."""

    svg: Markup
    description: str
    notes: tuple[str, ...] = ()


class Drawer:
    """Draws the charts of one page; each has names of its own for its parts."""

    def __init__(self) -> None:
        self._drawn = 0

    def errors(self, windows: Sequence[WindowReport]) -> Chart | None:
        """The gradient error of each window, with what was allowed; None where none was measured."""
        measured = [(w, w.grad_rel_error) for w in windows if _is_number(w.grad_rel_error)]
        if not measured:
            return None
        values = [value for _, value in measured if value is not None]
        allowed = [w.tolerance for w, _ in measured if w.tolerance]
        floor = _floor([*values, *allowed])
        groups = _groups(measured)
        notes = []
        if len(groups) < len(measured):
            notes.append(
                f"each point is the largest error of up to {max(map(len, groups))} windows; the band reaches down to "
                "the smallest"
            )
        if any(not value for value in values):
            notes.append("errors of exactly 0 are drawn at the bottom")
        if len(measured) < len(windows):
            notes.append(f"no error was measured for {len(windows) - len(measured)} of {len(windows)} windows")
        with _axes(_WIDTH, _HEIGHT) as (figure, axes):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: _power(value))
            worst = [max(group, key=lambda pair: pair[1] or 0.0) for group in groups]
            if len(groups) < len(measured):
                least = [max(min(value or 0.0 for _, value in group), floor) for group in groups]
                most = [max(value or 0.0, floor) for _, value in worst]
                axes.fill_between([w.index for w, _ in worst], least, most, color=MUTED, alpha=0.25, linewidth=0)
            for verdict, (color, shape) in _MARKS.items():
                own = [(w.index, max(value or 0.0, floor)) for w, value in worst if w.verdict is verdict]
                if own:
                    axes.plot(*zip(*own, strict=True), shape, color=color, markersize=5, markeredgewidth=0)
            bounds = [(w.index, *w.within) for w, _ in worst if w.within is not None]
            if bounds:
                places, low, high = zip(*bounds, strict=True)
                axes.vlines(places, [max(value, floor) for value in low], high, color=MUTED, linewidth=1)
                notes.append("vertical lines show the bounds of errors that were measured by sketches")
            limits = [(w.index, w.tolerance) for w, _ in worst if w.tolerance]
            if limits:
                axes.plot(*_stepped(limits), "--", color=INK, linewidth=1.2)
            _over_windows(axes, measured)
            axes.set_ylabel("gradient error")
            axes.set_ylim(floor / 2, 4 * max(*values, *allowed, *(w.within[1] for w, _ in worst if w.within), floor))
            said = f"Gradient error of {len(measured)} windows: from {error(min(values))} to {error(max(values))}"
            if allowed:
                said += f"; allowed: {_span(allowed)}"
            return self._chart(figure, "Gradient error by window", f"{said}.", notes)

    def parameters(self, found: ByParameter) -> Chart | None:
        """The error of the parameters with the largest shares of it."""
        shown = [one for one in found.worst[:_BARS] if one.share > 0]
        if not shown:
            return None
        with _axes(_WIDTH, 0.75 + 0.24 * len(shown)) as (figure, axes):
            places = range(len(shown))
            axes.barh(places, [100 * one.share for one in shown], color=ACCENT, height=0.7)
            axes.set_yticks(places, [visible(shortened(one.name, _LONGEST_NAME)) for one in shown])
            axes.invert_yaxis()
            axes.set_xlim(0, 100 * shown[0].share * 1.6)
            for place, one in enumerate(shown):
                off = "reference is 0" if one.error is None else f"off by {error(one.error)}"
                _beside(axes, 100 * one.share, place, off)
            axes.set_xlabel("% of the squared error")
            axes.grid(axis="x")
            axes.set_axisbelow(True)
            said = ", ".join(f"{one.name} {one.share:.0%}" for one in shown[:5])
            left = found.parameters - len(shown)
            notes = [f"{left} more with smaller shares"] if left else []
            return self._chart(figure, "Gradient error by parameter", f"Shares of the squared error: {said}.", notes)

    def line(self, windows: Sequence[WindowReport], values: Sequence[float | None], called: str) -> Chart | None:
        """One number of each window; None where none was measured."""
        pairs = zip(windows, values, strict=True)
        measured = [(window, value) for window, value in pairs if value is not None and math.isfinite(value)]
        if not measured:
            return None
        groups = _groups(measured)
        worst = [max(group, key=lambda pair: pair[1] or 0.0) for group in groups]
        notes = [f"each point is the largest of up to {max(map(len, groups))} windows"]
        with _axes(_WIDTH, _HEIGHT * 0.8) as (figure, axes):
            points = [(w.index, value or 0.0) for w, value in worst]
            axes.plot(*zip(*points, strict=True), "-o", color=ACCENT, markersize=3)
            _over_windows(axes, measured)
            axes.set_ylim(bottom=0)
            axes.set_ylabel(called)
            known = [value for _, value in measured if value is not None]
            said = f"{called.capitalize()} of {len(known)} windows: {_span(known)}, {error(known[-1])} after the last."
            title = f"{called.capitalize()} by window"
            return self._chart(figure, title, said, notes if len(groups) < len(measured) else [])

    def cost(self, cost: CostReport) -> Chart:
        """Memory and time of a window, compared with those of its large batch."""
        called = [f"{cost.micro_batches} micro-batches", "1 large batch"]
        kept = [float(cost.accumulated.kept_bytes), float(cost.large_batch.kept_bytes)]
        taken = [1e3 * cost.accumulated.seconds, 1e3 * cost.large_batch.seconds]
        with _axes(_WIDTH, 2.2, rows=2) as (figure, each):
            for axes, values, unit, texts in (
                (each[0], kept, "kept for a backward", [amount_of_memory(value) for value in kept]),
                (each[1], taken, "time", [in_time(value / 1e3) for value in taken]),
            ):
                axes.barh([0, 1], values, color=[ACCENT, OTHER], height=0.65)
                axes.set_yticks([0, 1], called)
                axes.invert_yaxis()
                axes.set_xlim(0, (max(values) or 1.0) * 1.5)
                axes.xaxis.set_major_locator(NullLocator())
                axes.spines["bottom"].set_visible(False)
                axes.set_title(unit, loc="left", fontsize=10, color=MUTED)
                for place, text in enumerate(texts):
                    _beside(axes, values[place], place, text)
            said = (
                f"As {called[0]} {amount_of_memory(kept[0])} and {in_time(taken[0] / 1e3)}, as one large batch "
                f"{amount_of_memory(kept[1])} and {in_time(taken[1] / 1e3)}."
            )
            return self._chart(figure, "Memory and time of the largest window", said, [])

    def _chart(self, figure: Figure, title: str, description: str, notes: Sequence[str]) -> Chart:
        self._drawn += 1
        svg = _inline(figure, f"c{self._drawn}", title, visible(description))
        return Chart(svg, description, tuple(notes))


def in_time(seconds: float) -> str:
    """A duration."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


_Measured = Sequence[tuple[WindowReport, float | None]]


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _groups(measured: _Measured) -> list[_Measured]:
    """The windows in order, in no more than _POINTS groups."""
    size = math.ceil(len(measured) / _POINTS)
    return [measured[start : start + size] for start in range(0, len(measured), size)]


def _floor(values: Sequence[float]) -> float:
    """The value that is drawn for 0 on a logarithmic scale."""
    positive = [value for value in values if value > 0]
    return min(positive) / 10 if positive else 1e-16


def _span(values: Sequence[float]) -> str:
    least, most = error(min(values)), error(max(values))
    return least if least == most else f"{least} to {most}"


def _power(value: float) -> str:
    """A number of a logarithmic scale: in full near 1, else as a power of ten."""
    if 0.01 <= value <= 100:
        return f"{value:g}"
    digits, _, exponent = f"{value:.0e}".partition("e")
    return f"{digits}e{int(exponent)}"


def _beside(axes: Axes, end: float, place: int, text: str) -> None:
    """Write next to the end of a bar."""
    axes.annotate(text, (end, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)


def _stepped(points: Sequence[tuple[int, float]]) -> tuple[list[float], list[float]]:
    """A line of steps through the points, half a window to either side of each."""
    half = min((b - a for (a, _), (b, _) in pairwise(points)), default=1) / 2
    places = [(place + side, value) for place, value in points for side in (-half, half)]
    return [place for place, _ in places], [value for _, value in places]


def _over_windows(axes: Axes, measured: _Measured) -> None:
    axes.set_xlabel("window")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    first, last = measured[0][0].index, measured[-1][0].index
    room = max(0.6, (last - first) * 0.03)
    axes.set_xlim(first - room, last + room)
    axes.grid(axis="y")
    axes.set_axisbelow(True)


@contextmanager
def _axes(width: float, height: float, rows: int = 1) -> Iterator[tuple[Figure, Any]]:
    """A figure of this size in inches, drawn in our style and not the user's, without warnings."""
    with warnings.catch_warnings(), matplotlib.style.context(_STYLE, after_reset=True):
        # Glyphs that its fonts lack are in the reader's: text stays text.
        warnings.simplefilter("ignore")
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(rows)


def _inline(figure: Figure, name: str, title: str, description: str) -> Markup:
    """The figure as SVG in the text of a page."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(written.getvalue())
    box = root.get("viewBox", "")
    _clean(root, name)
    root.attrib.clear()
    root.attrib.update(
        {
            "viewBox": box,
            "role": "img",
            "aria-labelledby": f"{name}-title {name}-said",
            "class": "chart",
            "style": f"max-width: {float(box.split()[2]) * 1.7:.0f}px",
        }
    )
    for tag, text in (("desc", description), ("title", title)):
        element = ElementTree.Element(tag, id=f"{name}-{'title' if tag == 'title' else 'said'}")
        element.text = text
        root.insert(0, element)
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # which escapes what it writes


def _clean(element: ElementTree.Element, name: str) -> None:
    """Leave what is drawn: no metadata, no style of the whole page, and names that are this chart's own."""
    element.tag = element.tag.partition("}")[2] or element.tag
    for key, value in list(element.attrib.items()):
        plain = key.partition("}")[2] or key
        if plain == "id":
            value = f"{name}-{value}"
        elif plain == "href":
            value = value.replace("#", f"#{name}-")
        else:
            value = value.replace("url(#", f"url(#{name}-")
            value = _COLOR.sub(lambda found: _NAMES.get(found[0], found[0]), value)
        del element.attrib[key]
        element.attrib[plain] = value
    for child in list(element):
        tag = child.tag.partition("}")[2] or child.tag
        if tag in ("metadata", "style"):
            element.remove(child)
        else:
            _clean(child, name)
