"""Data parallel training: the calls and blocks that leave gradients local to their rank."""

from __future__ import annotations

from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.syntax import walk
from gradcheck_accum.lint.torch_calls.models import sources_of


def pause(run: State, models: Any, enabled: Any) -> Any:
    """``model.no_sync()``, ``fabric.no_backward_sync(model, enabled=...)``."""
    sources = sources_of(models)
    if sources is None:
        return v.UNKNOWN
    known = enabled if isinstance(enabled, bool) else None
    return run.sync.make_pause(sources, known)


def context_of(run: State, node: syntax.Expression, value: Any, scope: v.Scope) -> v.LocalGradients | None:
    """What a ``with`` statement does to the averaging of gradients: something unknown if it is passed the model."""
    if isinstance(value, v.LocalGradients):
        return value
    if isinstance(node, syntax.Call) and run.sync.knows_wrapped:
        for part in walk(node):
            if isinstance(part, (syntax.Name, syntax.Attribute)):
                sources = sources_of(run.evaluate(part, scope))
                if sources is not None and run.sync.is_wrapped(sources):
                    return v.LocalGradients(sources, None, made_here=False)
    return None
