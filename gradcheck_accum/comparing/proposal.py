"""The comparison that a script's own arguments show: one of them is K, and one the size of a batch."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradcheck_accum.ledger.stated_names import is_name_of_steps, names_size
from gradcheck_accum.sources.decoding import NotText, text_of

_STEPS = re.compile(r"(^|_)(accum\w*|grad_acc|update_freq)($|_)")
_SIZE = re.compile(r"(^|_)((mini|micro)?batch|bs|bsz)($|_)")
_NO_SIZE_OF_TRAINING = re.compile(r"(^|_)(eval|val|valid\w*|test|dev|num|n|max|accum\w*)($|_)")
"""Words of names. Whoever runs a proposal sees whether it fits: more names will do than a verdict may rest on."""

_DECLARING = ("add_argument", "option")
_READING_VARIABLES = ("get", "getenv")


@dataclass(frozen=True, slots=True)
class _Setting:
    """A whole number that a script is given or declares.

    ``form`` is how it is written, with its value in the place of ``{}``; ``names`` are all of its names. ``places`` are
    those of its words among the arguments, none for a default. Without a default the value is 0.
    """

    names: tuple[str, ...]
    value: int
    form: str
    places: tuple[int, ...] = ()
    is_variable: bool = False

    @property
    def is_steps(self) -> bool:
        """Whether one of its names is K's."""
        return any(is_name_of_steps(name) or _STEPS.search(name.casefold()) for name in map(_plain, self.names))

    @property
    def is_size(self) -> bool:
        """Whether one of its names is that of a training batch's size."""
        plain = [_plain(name).casefold() for name in self.names]
        return names_size(plain) or any(_SIZE.search(n) and not _NO_SIZE_OF_TRAINING.search(n) for n in plain)


def proposed(script: str, arguments: Sequence[str], *, is_module: bool = False) -> str:
    """The command that compares a run with these arguments with one at K = 1; nothing where they show none.

    What is not given is taken from the defaults that the script declares, and from the environment variables that it
    reads.
    """
    declared = [] if is_module else list(_declared(script))
    known = [*_given(arguments, declared), *declared]
    steps = next((a for a in known if a.is_steps), None)
    size = next((a for a in known if a.is_size and a is not steps), None)
    if steps is None or size is None or steps.value < 2 or size.value < 1:
        return ""
    each = [
        _configuration(size, size.value, steps, steps.value),
        _configuration(size, size.value * steps.value, steps, 1),
    ]
    common = [word for i, word in enumerate(arguments) if i not in (*steps.places, *size.places)]
    what = ["-m", script] if is_module else [script]
    words = ["gradcheck-accum", "compare", *what, *(f"--with={one}" for one in each)]
    return shlex.join([*words, *(["--", *common] if common else [])])


def _configuration(size: _Setting, of_size: int, steps: _Setting, of_steps: int) -> str:
    written = [(size.is_variable, size.form.format(of_size)), (steps.is_variable, steps.form.format(of_steps))]
    variables = [text for is_variable, text in written if is_variable]
    return " ".join(
        [*(["env", *variables] if variables else []), *(text for is_variable, text in written if not is_variable)]
    )


def _plain(name: str) -> str:
    """An argument's name as a variable has it: of a nested setting the last part."""
    return name.lstrip("-+").rpartition(".")[2].replace("-", "_")


def _given(arguments: Sequence[str], declared: Sequence[_Setting]) -> list[_Setting]:
    """What the arguments give, by all the names that the script has for it; of what is given twice, the last holds."""
    found: dict[tuple[str, ...], _Setting] = {}
    for own in _written(arguments):
        names = next((one.names for one in declared if set(own.names) & set(one.names)), own.names)
        earlier = found.get(names)
        found[names] = replace(own, names=names, places=(*(earlier.places if earlier else ()), *own.places))
    return list(found.values())


def _written(arguments: Sequence[str]) -> Iterator[_Setting]:
    for i, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if equals and value.isdecimal():
            yield _Setting((name,), int(value), f"{_kept(name)}={{}}", (i,))
        elif word.startswith("-") and i + 1 < len(arguments) and arguments[i + 1].isdecimal():
            yield _Setting((word,), int(arguments[i + 1]), f"{_kept(word)} {{}}", (i, i + 1))


def _kept(text: str) -> str:
    return shlex.quote(text).replace("{", "{{").replace("}", "}}")


def _declared(script: str) -> Iterator[_Setting]:
    """What a script declares with a whole number as its default.

    Options as argparse and click have them, and the environment variables that it reads.
    """
    try:
        tree = ast.parse(text_of(Path(script).read_bytes()))
    except (OSError, NotText, SyntaxError, ValueError, RecursionError):
        return
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        called, names = getattr(call.func, "attr", ""), tuple(_texts(call.args))
        long = [name for name in names if name.startswith("--")]
        if called in _DECLARING and long:
            default = next((k.value for k in call.keywords if k.arg == "default"), None)
            yield _Setting(names, _whole(default) or 0, f"{_kept(long[0])} {{}}")
        elif called in _READING_VARIABLES and "env" in ast.unparse(call.func) and len(call.args) == 2 and names:
            value = _whole(ast.Constant(os.environ.get(names[0]))) or _whole(call.args[1])
            if value is not None:
                yield _Setting(names[:1], value, f"{_kept(names[0])}={{}}", is_variable=True)


def _whole(node: ast.expr | None) -> int | None:
    """The whole number that an expression is, or that its text is."""
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _texts(nodes: Sequence[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
