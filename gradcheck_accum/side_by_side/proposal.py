"""The comparison that a script's own arguments show: one of them is K, and one the size of a batch."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradcheck_accum.source_text import NotText, text_of
from gradcheck_accum.stated import is_name_of_steps, names_size


@dataclass(frozen=True, slots=True)
class _Argument:
    """An argument with its value; ``places`` are those of its words among the arguments, none for a default."""

    name: str
    value: int
    places: tuple[int, ...] = ()

    def given(self, value: int) -> str:
        """It in words, with a value of its own."""
        return f"{self.name} {value}" if self.name.startswith("-") else f"{self.name}={value}"


def proposed(script: str, arguments: Sequence[str], *, is_module: bool = False) -> str:
    """The command that compares a run with these arguments with one at K = 1; nothing where they show none.

    What is not given is taken from the defaults that the script declares.
    """
    known = [*_given(arguments), *([] if is_module else _declared(script))]
    steps = next((a for a in known if is_name_of_steps(_plain(a.name))), None)
    size = next((a for a in known if names_size([_plain(a.name)])), None)
    if steps is None or size is None or steps.value < 2 or size.value < 1:
        return ""
    each = [
        f"{size.given(size.value)} {steps.given(steps.value)}",
        f"{size.given(size.value * steps.value)} {steps.given(1)}",
    ]
    common = [word for i, word in enumerate(arguments) if i not in (*steps.places, *size.places)]
    what = ["-m", script] if is_module else [script]
    words = ["gradcheck-accum", "compare", *what, *(f"--with={one}" for one in each)]
    return shlex.join([*words, *(["--", *common] if common else [])])


def _plain(name: str) -> str:
    """An argument's name as a variable has it: of a nested setting the last part."""
    return name.lstrip("-+").rpartition(".")[2].replace("-", "_")


def _given(arguments: Sequence[str]) -> Iterator[_Argument]:
    for i, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if equals and value.isdigit():
            yield _Argument(name, int(value), (i,))
        elif word.startswith("-") and i + 1 < len(arguments) and arguments[i + 1].isdigit():
            yield _Argument(word, int(arguments[i + 1]), (i, i + 1))


def _declared(script: str) -> Iterator[_Argument]:
    """The options that a script declares with a whole number as their default, as argparse and click have them."""
    try:
        tree = ast.parse(text_of(Path(script).read_bytes()))
    except (OSError, NotText, SyntaxError, ValueError, RecursionError):
        return
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("add_argument", "option"):
            names = [name for name in _texts(call.args) if name.startswith("--")]
            default = next((k.value for k in call.keywords if k.arg == "default"), None)
            value = default.value if isinstance(default, ast.Constant) else None
            if names and isinstance(value, int) and not isinstance(value, bool):
                yield _Argument(names[0], value)


def _texts(nodes: Sequence[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
