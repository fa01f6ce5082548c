"""Changes how a script reads and nothing of what it does, on its syntax tree: names, comments, code that never runs."""

from __future__ import annotations

import ast
import random
import textwrap
from collections.abc import Sequence

from gradcheck_accum.lint.source import walk

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
"""Other names for what a script names, by the disguise that gives them."""

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
    """``source`` with every one of ``disguises``; places are chosen by ``seed``."""
    if not disguises:
        return source
    names = {old: new for disguise in disguises for old, new in NAMES.get(disguise, {}).items()}
    tree = ast.parse(source)
    lines = _renamed(source, tree, names)
    if "comments" in disguises or "dead code" in disguises:
        filling = _Filling(names, "comments" in disguises, "dead code" in disguises, random.Random(seed))
        filling.fill(tree)
        lines = filling.inserted_in(lines)
    return "".join(lines)


def _renamed(source: str, tree: ast.Module, names: dict[str, str]) -> list[str]:
    """The lines of ``source`` with other names for its variables: attributes and keywords are another's to name."""
    lines = source.splitlines(keepends=True)
    places = [place for node in walk(tree) if (place := _name_at(node)) and place[2] in names] if names else []
    for line, column, name in sorted(places, reverse=True):
        text = lines[line - 1]
        lines[line - 1] = text[:column] + names[name] + text[column + len(name) :]
    return lines


def _name_at(node: ast.AST) -> tuple[int, int, str] | None:
    """Where a node names something, and what."""
    match node:
        case ast.Name(id=name) | ast.arg(arg=name):
            return node.lineno, node.col_offset, name
        case ast.FunctionDef(name=name):
            return node.lineno, node.col_offset + len("def "), name
        case ast.ClassDef(name=name):
            return node.lineno, node.col_offset + len("class "), name
    return None


class _Filling:
    """Comments and dead code for the bodies of loops, by the lines that they come before or after."""

    def __init__(self, names: dict[str, str], comments: bool, dead_code: bool, chance: random.Random) -> None:
        self._names = names
        self._comments = comments
        self._dead_code = dead_code
        self._chance = chance
        self._before: dict[int, list[str]] = {}
        self._after: dict[int, list[str]] = {}

    def fill(self, node: ast.AST) -> None:
        """Choose what comes into the loops below ``node``, and into it if it is one: the inner ones first."""
        for name in ("body", "orelse"):
            for statement in getattr(node, name, ()):
                self.fill(statement)
        if isinstance(node, (ast.For, ast.While)):
            self._fill(node.body)

    def _fill(self, body: Sequence[ast.stmt]) -> None:
        indent = " " * body[0].col_offset
        dead_at, dead, above = len(body) + 1, "", ""
        if self._dead_code:
            text = self._chance.choice(_DEAD)
            dead = textwrap.indent("".join(_renamed(text, ast.parse(text), self._names)), indent)
            dead_at = self._chance.randrange(len(body) + 1)
        comment_at = -1
        if self._comments:
            comment_at = self._chance.randrange(len(body) + self._dead_code)
            above = f"{indent}{self._chance.choice(_COMMENTS)}\n"
        if comment_at == dead_at:
            dead = above + dead
        if dead_at == len(body):
            self._after.setdefault(body[-1].end_lineno or 0, []).append(dead)
        elif dead:
            self._before.setdefault(body[dead_at].lineno, []).append(dead)
        if self._comments and comment_at != dead_at:
            statement = body[comment_at - (comment_at > dead_at)]
            self._before.setdefault(statement.lineno, []).append(above)

    def inserted_in(self, lines: Sequence[str]) -> list[str]:
        """The lines of a script with all that was chosen."""
        filled: list[str] = []
        for number, line in enumerate(lines, 1):
            filled += (*self._before.get(number, ()), line, *self._after.get(number, ()))
        return filled
