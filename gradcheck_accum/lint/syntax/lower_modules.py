"""From a LibCST tree to the syntax of our own."""

from __future__ import annotations

import libcst as cst

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint.syntax import nodes as s
from gradcheck_accum.lint.syntax.lower_expressions import EXPRESSIONS
from gradcheck_accum.lint.syntax.lower_patterns import PATTERNS
from gradcheck_accum.lint.syntax.lower_statements import STATEMENTS
from gradcheck_accum.lint.syntax.lowering import Handler, Lowering
from gradcheck_accum.lint.syntax.node import NOWHERE
from gradcheck_accum.lint.syntax.places import Places

_HANDLERS: dict[type[cst.CSTNode], Handler] = {**EXPRESSIONS, **PATTERNS, **STATEMENTS}


def lower(module: cst.Module, text: str, path: str, first: int = 1, at: Location | None = None) -> s.Module:
    """The syntax of a module; its lines count from ``first``, or all of it stands ``at`` one place."""
    places = Places(module, text, path, first, at)
    return s.Module(NOWHERE, module, body_of(module, places), places.comments(), text)


def body_of(module: cst.Module, places: Places) -> tuple[s.Statement, ...]:
    """The statements of a module whose nodes stand at these places."""
    return Lowering(places, _HANDLERS).body(module)
