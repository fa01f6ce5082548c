"""Training loops with places to fill, and the codes that lint finds in them."""

from __future__ import annotations

from string import Formatter

from gradcheck_accum.lint import lint_source

WINDOWS_IN_EPOCHS = """\
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader):
            loss = criterion(model(x), y)
            (loss / K).backward()
            {before}
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
                {inside}
            {after}
        optimizer.zero_grad()
        {end}
"""
"""The body of a training function: windows of K micro-batches, in which ``optimizer`` and ``model`` are used right."""


def filled(loop: str, **places: str) -> str:
    """A loop with its places filled; nothing is done in those that are not named."""
    named = {name for _, name, _, _ in Formatter().parse(loop) if name}
    return loop.format(**(dict.fromkeys(named, "pass") | places))


def codes_in(source: str, family: str = "GA") -> list[str]:
    """The codes of what lint finds, of one family of mistakes."""
    return [f.mistake.code for f in lint_source(source, "train.py") if f.mistake.code.startswith(family)]
