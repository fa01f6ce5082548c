"""The loop that the tests of the doors work on: what they ask is where it is read and how it is reported."""

from __future__ import annotations


def plain_loop(k: object, *, flush: bool = False, name: str = "train") -> str:
    """A training loop whose loss nothing divides (GA101 at line 4), and that steps every ``k`` micro-batches.

    With a ``flush`` that is its only mistake; without, a remainder is lost too (GA301 at line 6). A name for ``k``
    is an argument.
    """
    last = " or i + 1 == len(loader)" if flush else ""
    argument = f", {k}" if isinstance(k, str) else ""
    return f"""\
def {name}(model, loader, optimizer, criterion{argument}):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        loss.backward()
        if (i + 1) % {k} == 0{last}:
            optimizer.step()
            optimizer.zero_grad()
"""
