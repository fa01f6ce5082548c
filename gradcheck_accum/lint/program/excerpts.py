"""What of a large source can matter to its training: the rest of it is not worth being parsed.

A function that no code mentions, and that calls no backward, itself or through others, is never entered. Such
functions are left out of the text, each for a string of as many lines: all else keeps its place. Names are
compared as words, wherever in the code they are: more is kept than is called, and never less.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from gradcheck_accum.lint.program.torch_names import (
    AVERAGES,
    BACKWARD,
    BLENDS_ALL,
    BLENDS_IN_PLACE,
    ENGINE_BOUNDARY,
    GATES,
    PARAMETERS,
    PAUSES,
    SYNC_SWITCH,
)

_LONG_STRING = r"\"\"\"[^\"\\]*(?:(?:\\.|\"(?!\"\"))[^\"\\]*)*\"\"\"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"
_STRING = r"\"[^\"\\\n]*(?:\\.[^\"\\\n]*)*\"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'"
_PIECE = re.compile(rf"[^\n\"'#()\[\]{{}}\\]+|#[^\n]*|{_LONG_STRING}|{_STRING}|\\.|.", re.DOTALL)
_TEXT = re.compile(rf"(#[^\n]*|(?<![fFtTrR])(?:{_LONG_STRING}))|{_LONG_STRING}|{_STRING}", re.DOTALL)
"""Strings and comments; the first group has those of them that are no code and call nothing."""
_WORD = re.compile(r"[^\W\d]\w*")
_DEFINED = re.compile(r"\b(?:def|class)[ \t]+\w+")
_LINE = re.compile(r"([ \t]*)(?:(@)|(?:async[ \t]+)?(def|class)[ \t]+(\w+))?")
_RUNS_BACKWARD = BACKWARD | GATES
_TELLS = frozenset({"step", "zero_grad", "train", SYNC_SWITCH, ENGINE_BOUNDARY, BLENDS_ALL}).union(
    *(PARAMETERS, PAUSES, AVERAGES, BLENDS_IN_PLACE)
)
"""Words that say something of a file wherever they are in it (`gradcheck_accum.lint.program.facts.Facts`)."""
_A_TEST = "test"
"""How the methods are called that only a test runner calls."""


@dataclass(slots=True, eq=False)
class _Definition:
    """A function of a module or of a class, or a class; ``words`` are those of its code, less its own definitions'."""

    name: str
    start: int
    end: int
    indent: str
    is_class: bool
    owner: _Definition | None
    members: list[_Definition] = field(default_factory=list)
    words: frozenset[str] = frozenset()
    kept: bool = False


def excerpt(text: str) -> str:
    """A source without the functions and classes that cannot matter, all else of it where it is."""
    outermost = list(_definitions(text))
    every = [one for definition in outermost for one in _all_of(definition)]
    for one in every:
        one.words = _words(text, one.start, one.end, one.members)
    _keep(every, _words(text, 0, len(text), outermost))
    return "".join(_pieces(text, outermost, 0, len(text)))


def _pieces(text: str, definitions: Collection[_Definition], start: int, end: int) -> Iterator[str]:
    at = start
    for one in definitions:
        yield text[at : one.start]
        if one.kept:
            yield from _pieces(text, one.members, one.start, one.end)
        else:
            yield f'{one.indent}"""' + "\n" * (text.count("\n", one.start, one.end) - 1) + '"""\n'
        at = one.end
    yield text[at:end]


def _keep(every: Collection[_Definition], outside: frozenset[str]) -> None:
    """Mark what is kept: what may run backward, or tells something of the file, and whatever that mentions."""
    by_name: dict[str, list[_Definition]] = {}
    mentioning: dict[str, list[_Definition]] = {}
    for one in every:
        by_name.setdefault(one.name, []).append(one)
    for one in every:
        for word in one.words:
            if word in by_name:
                mentioning.setdefault(word, []).append(one)
    calling = [one for one in every if not one.words.isdisjoint(_RUNS_BACKWARD)]
    seen = set(calling)
    for one in calling:
        new = [other for other in mentioning.get(one.name, ()) if other not in seen]
        seen.update(new)
        calling += new
    wanted = [*calling, *(one for one in every if not one.words.isdisjoint(_TELLS))]
    wanted += [one for word in outside for one in by_name.get(word, ())]
    for one in wanted:
        if one.kept:
            continue
        one.kept = True
        wanted += [other for word in one.words for other in by_name.get(word, ()) if not other.kept]
        wanted += [member for member in one.members if not member.kept and _may_be_called(member)]
        if one.owner is not None:
            wanted.append(one.owner)


def _may_be_called(member: _Definition) -> bool:
    """Whether code elsewhere may call a member of a class: a base class does, for one."""
    return not member.is_class and not member.name.startswith(_A_TEST)


def _words(text: str, start: int, end: int, left_out: Collection[_Definition]) -> frozenset[str]:
    """The words of a piece of code, without those of the definitions in it."""
    parts = []
    for one in left_out:
        parts.append(text[start : one.start])
        start = one.end
    parts.append(text[start:end])
    code = _TEXT.sub(lambda found: "" if found[1] else found[0], "".join(parts))
    return frozenset(_WORD.findall(_DEFINED.sub("", code)))


def _all_of(definition: _Definition) -> Iterator[_Definition]:
    yield definition
    for member in definition.members:
        yield from _all_of(member)


def _definitions(text: str) -> Iterator[_Definition]:
    """The functions and classes of a module, each with those of a class, in order."""
    around: list[_Definition] = []
    decorated: int | None = None
    for start, indent, is_decorator, kind, name in _lines(text):
        while around and len(indent) <= len(around[-1].indent):
            ended = around.pop()
            ended.end = start if decorated is None else decorated
            if not around:
                yield ended
        if is_decorator:
            decorated = start if decorated is None else decorated
            continue
        if kind and (around[-1].is_class if around else not indent):
            begins = start if decorated is None else decorated
            one = _Definition(name, begins, len(text), indent, kind == "class", around[-1] if around else None)
            if around:
                around[-1].members.append(one)
            around.append(one)
        decorated = None
    while around:
        ended = around.pop()
        if not around:
            yield ended


def _lines(text: str) -> Iterator[tuple[int, str, bool, str, str]]:
    """Where each logical line starts, its indentation, whether it is a decorator, and what it defines."""
    depth, begins = 0, 0
    for match in _PIECE.finditer(text):
        piece = match[0]
        match piece:
            case "(" | "[" | "{":
                depth += 1
            case ")" | "]" | "}":
                depth -= 1
            case "\n" if depth == 0:
                line = _LINE.match(text, begins)
                if line is not None and text[line.end() : line.end() + 1] not in ("\n", "#", "\r", ""):
                    yield begins, line[1], line[2] is not None, line[3] or "", line[4] or ""
                begins = match.end()
