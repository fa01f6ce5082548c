"""Ledgers as pictures: one bar for each micro-batch, as high as its weight, with a line at 1."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

_BAR, _GAP, _WINDOW_GAP = 34, 6, 30
_HEIGHT, _TOP, _BOTTOM, _LEFT = 110, 26, 30, 34
_HIGHEST = 6.0
"""Weights beyond this are drawn this high, and say how much they are."""


@dataclass(frozen=True)
class Window:
    """The weights of one window under its label."""

    label: str
    weights: tuple[float, ...]


def read(text: str) -> list[Window]:
    """The windows of a ``ledger`` block: a label, a colon, and the weights, window by window."""
    windows = []
    for line in filter(None, map(str.strip, text.splitlines())):
        label, _, weights = line.rpartition(":")
        windows.append(Window(label, tuple(float(weight) for weight in weights.split(","))))
    return windows


def svg(windows: list[Window]) -> str:
    """The picture; its colors come from the page that it is in."""
    most = max(weight for window in windows for weight in window.weights)
    scale = _HEIGHT / min(max(most, 1.25), _HIGHEST)
    floor = _TOP + _HEIGHT
    parts, left = list[str](), float(_LEFT)
    for window in windows:
        width = max(len(window.weights) * (_BAR + _GAP) - _GAP, 7 * len(window.label))
        start = left + (width - len(window.weights) * (_BAR + _GAP) + _GAP) / 2
        for number, weight in enumerate(window.weights):
            parts += _bar(start + number * (_BAR + _GAP), weight, scale, floor)
        parts.append(f'<path class="ga-axis" d="M{left:g} {floor} h{width:g}"/>')
        parts.append(_text("ga-label", left + width / 2, floor + 20, window.label))
        left += width + _WINDOW_GAP
    right = left - _WINDOW_GAP + 8
    one = floor - scale
    parts.append(f'<path class="ga-one" d="M{_LEFT - 8} {one:g} H{right:g}"/>')
    parts.append(_text("ga-label", _LEFT - 18, one + 5, "1"))
    said = "; ".join(f"{window.label}: {', '.join(f'{w:g}' for w in window.weights)}" for window in windows)
    size = f'viewBox="0 0 {right:g} {floor + _BOTTOM}" style="max-width: {right:g}px"'
    return f'<svg class="ga-ledger" role="img" aria-label="{escape(said)}" {size}>{"".join(parts)}</svg>'


def _bar(left: float, weight: float, scale: float, floor: float) -> list[str]:
    kind = "right" if weight == 1 else "wrong"
    height = min(weight, _HIGHEST) * scale
    top = floor - max(height, 2)
    return [
        f'<rect class="ga-{kind}" x="{left:g}" y="{top:g}" width="{_BAR}" height="{floor - top:g}" rx="2"/>',
        _text(f"ga-number ga-{kind}-text", left + _BAR / 2, top - 6, f"{weight:g}"),
    ]


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


_BLOCK = re.compile(r"^```ledger\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def drawn(markdown: str) -> str:
    """A page with its ``ledger`` blocks as pictures."""
    return _BLOCK.sub(lambda block: f'<figure class="ga-figure">{svg(read(block[1]))}</figure>', markdown)
