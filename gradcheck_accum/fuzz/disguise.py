"""Changes how a script reads but not what it does, on its syntax tree: names, comments, code that never runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import libcst as cst

NAMES: dict[str, dict[str, str]] = {
    "names of others": {
        "model": "net",
        "optimizer": "opt",
        "criterion": "loss_fn",
        "loader": "train_loader",
        "K": "accumulation_steps",
        "i": "step",
        "x": "inputs",
        "y": "targets",
    },
    "short names": {
        "model": "m",
        "optimizer": "o",
        "criterion": "c",
        "loader": "dl",
        "K": "n_acc",
        "i": "b",
        "loss": "l",
    },
    "names that mislead": {
        "i": "epoch_index",
        "K": "log_every",
        "count": "total",
        "raw": "metric",
        "loader": "samples",
    },
}
"""Other names for the names of a script, by disguise."""

DISGUISES = (*NAMES, "comments", "dead code")

_COMMENTS = ("# loss.backward()", "# optimizer.step() comes later", "# TODO: / K", "# the usual loop")
_DEAD = (
    "if False:\n    optimizer.step()\n",
    "if False:\n    optimizer.zero_grad()\n    model.zero_grad()\n",
    "while False:\n    model.zero_grad()\n",
    "def never_called():\n    optimizer.zero_grad()\n    optimizer.step()\n",
    "note = 'loss.backward() / K'\n",
    "size = 2 * 3 % 4\n",
)


def disguised(source: str, disguises: Sequence[str], seed: int) -> str:
    """``source`` with all ``disguises`` applied; ``seed`` determines where."""
    if not disguises:
        return source
    tree = cst.parse_module(source)
    chance = random.Random(seed)
    names = {old: new for disguise in disguises for old, new in NAMES.get(disguise, {}).items()}
    tree = tree.visit(_Disguise(names, "comments" in disguises, "dead code" in disguises, chance))
    return tree.code


@lru_cache(maxsize=len(_DEAD))
def _statements(text: str) -> cst.Module:
    return cst.parse_module(text)


_Loop = TypeVar("_Loop", cst.For, cst.While)
_PLAIN = (cst.ImportAlias, cst.BaseParenthesizableWhitespace, cst.TrailingWhitespace, cst.EmptyLine, cst.Comma)
"""Nodes in which nothing is changed."""


class _Disguise(cst.CSTTransformer):
    def __init__(self, names: dict[str, str], comments: bool, dead_code: bool, chance: random.Random) -> None:
        super().__init__()
        self._names = names
        self._comments = comments
        self._dead_code = dead_code
        self._chance = chance

    # LibCST would look these up by name at every node and attribute, which is most of a visit's time.

    def on_visit(self, node: cst.CSTNode) -> bool:
        return not isinstance(node, _PLAIN)

    def on_visit_attribute(self, node: cst.CSTNode, attribute: str) -> None:
        pass

    def on_leave_attribute(self, original_node: cst.CSTNode, attribute: str) -> None:
        pass

    def on_leave(self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT) -> cst.CSTNodeT:
        match original_node, updated_node:
            case cst.Name(value=name), _:
                new = self._names.get(name)
                return updated_node if new is None else updated_node.with_changes(value=new)
            case cst.Attribute(attr=attr), _:
                return updated_node.with_changes(attr=attr)
            case cst.Arg(keyword=keyword), _:
                return updated_node if keyword is None else updated_node.with_changes(keyword=keyword)
            case _, cst.For() as loop:
                return self._filled(loop)  # type: ignore[return-value]
            case _, cst.While() as loop:
                return self._filled(loop)  # type: ignore[return-value]
        return updated_node

    def _filled(self, loop: _Loop) -> _Loop:
        """A loop with additional statements and comments in its body."""
        body = list(loop.body.body)
        if self._dead_code:
            dead = _statements(self._chance.choice(_DEAD)).visit(_Renaming(self._names)).body[0]
            body.insert(self._chance.randrange(len(body) + 1), dead)
        if self._comments:
            at = self._chance.randrange(len(body))
            comment = cst.EmptyLine(comment=cst.Comment(self._chance.choice(_COMMENTS)))
            body[at] = body[at].with_changes(leading_lines=[comment])
        return loop.with_changes(body=loop.body.with_changes(body=body))


class _Renaming(_Disguise):
    """Changes only names."""

    def __init__(self, names: dict[str, str]) -> None:
        super().__init__(names, False, False, random.Random(0))
