"""What a piece of syntax says of itself."""

from __future__ import annotations

from gradcheck_accum.lint import syntax


def call_name(node: syntax.Call) -> str:
    """The last part of the name that is called."""
    func = node.func
    return func.attr if isinstance(func, syntax.Attribute) else func.id if isinstance(func, syntax.Name) else ""
