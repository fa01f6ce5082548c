"""The command line options that a file declares with argparse, by the names that they are stored under."""

from __future__ import annotations

import ast
from functools import lru_cache

from gradcheck_accum.ledger.stated_names import names_of_flags
from gradcheck_accum.verify.provenance.syntax import Syntax


def other_names(name: str, syntax: Syntax) -> frozenset[str]:
    """The names that the option stored as ``name`` has from its flags; empty where the file declares no such option."""
    return _renamed(syntax).get(name, frozenset())


@lru_cache(maxsize=64)
def _renamed(syntax: Syntax) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for node in syntax.walk(syntax.tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=flags, keywords=keywords):
                for keyword in keywords:
                    if keyword.arg == "dest" and isinstance(keyword.value, ast.Constant):
                        written = [flag.value for flag in flags if isinstance(flag, ast.Constant)]
                        names = names_of_flags(flag for flag in written if isinstance(flag, str))
                        found[str(keyword.value.value)] = found.get(str(keyword.value.value), frozenset()) | names
    return found
