"""The words that users and readers of the source see: docs/glossary.md lists the ones that do not occur in them."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradcheck_accum.cli import command_line

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gradcheck_accum"
GLOSSARY = ROOT / "docs" / "glossary.md"

WRITES_LOOPS = ("disguise", "oracle", "preamble", "render", "strategies", "tokens", "variants")
"""Modules of ``gradcheck_accum.fuzz`` whose strings are the source of generated loops, or names of their dimensions."""

ALLOWED = {
    "stands": r"stands for\b",
    "analys*": r"\banalys[ei]s\b",
}
"""Other meanings of such words, as what they are written as there."""

_FENCE = re.compile(r"^ *```(\w*).*?^ *```$", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| (`.+?) \| (.+) \|$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\]\([^)]*\)")


def deprecated() -> dict[str, re.Pattern[str]]:
    """The patterns of the glossary's last table, by how they are written there."""
    table = GLOSSARY.read_text(encoding="utf-8").partition("\n## Words\n")[2]
    words = [word for row in _ROW.finditer(table) for word in re.findall(r"`([^`]+)`", row[1])]
    return {word: _pattern(word) for word in words}


def _pattern(word: str) -> re.Pattern[str]:
    written = r"\s+".join(map(re.escape, word.removesuffix("*").split()))
    allowed = f"(?!{ALLOWED[word].removeprefix(chr(92) + 'b')})" if word in ALLOWED else ""
    return re.compile(rf"\b{allowed}{written}{'' if word.endswith('*') else chr(92) + 'b'}", re.IGNORECASE)


def literals(source: str) -> Iterator[tuple[int, str]]:
    """The strings of a module that may reach a user, with their lines: no docstrings, and nothing that is one word."""
    tree = ast.parse(source)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in documentation or id(node) in parts:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if " " in text.strip():
            yield node.lineno, text


def prose(page: str) -> str:
    """A page without the source that it shows and the names in it; what commands print stays."""
    kept = _FENCE.sub(lambda match: match[0] if match[1] in ("console", "text") else "", page)
    return _LINK.sub("]", _CODE.sub("", kept))


def public_names() -> list[str]:
    """The dotted names that docs/api.md lists."""
    return re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)


def _modules() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if not (path.parent.name == "fuzz" and path.stem in WRITES_LOOPS):
            for line, text in literals(path.read_text(encoding="utf-8")):
                yield f"{path.relative_to(ROOT)}:{line}", text


def _templates() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.html")):
        yield str(path.relative_to(ROOT)), shown(path.read_text(encoding="utf-8"))


def shown(template: str) -> str:
    """What of a template may be shown: its text, and the strings in its statements and expressions."""
    code = [match[1] for match in re.finditer(r"\{[%{](.*?)[%}]\}", template, re.DOTALL)]
    strings = [string for text in code for string in re.findall(r'"([^"]* [^"]*)"', text)]
    text = re.sub(r"\{%.*?%\}|\{\{.*?\}\}|<(style|svg)\b.*?</\1>|<[^>]*>", " ", template, flags=re.DOTALL)
    return "\n".join([text, *strings])


def _pages() -> Iterator[tuple[str, str]]:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "benchmarks" / "README.md"]
    pages += [ROOT / "fixtures" / "README.md"]
    pages += [*sorted((ROOT / "rules").glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
    for path in pages:
        text = path.read_text(encoding="utf-8")
        if path == GLOSSARY:
            text = text.partition("\n## Words\n")[0]
        yield str(path.relative_to(ROOT)), prose(text)


def comments(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a module without the names in them, with their lines."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, _CODE.sub("", text)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], _CODE.sub("", token.string)


def _source() -> Iterator[tuple[str, str]]:
    for folder in (PACKAGE, ROOT / "rules"):
        for path in sorted(folder.rglob("*.py")):
            for line, text in comments(path.read_text(encoding="utf-8")):
                yield f"{path.relative_to(ROOT)}:{line}", text


def _helps() -> Iterator[tuple[str, str]]:
    parser = command_line()
    yield "--help", parser.format_help()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        yield f"{name} --help", command.format_help()


def _documentation() -> Iterator[tuple[str, str]]:
    for name in public_names():
        module, _, attribute = name.rpartition(".")
        if ".callbacks." in name:
            continue  # needs its framework: read as source below
        found = getattr(importlib.import_module(module), attribute)
        yield name, inspect.getdoc(found) or ""
    for path in sorted((PACKAGE / "callbacks").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                yield f"{path.name}:{node.lineno}", ast.get_docstring(node) or ""


SEEN = {
    "messages": _modules,
    "templates": _templates,
    "pages": _pages,
    "help": _helps,
    "docstrings": _documentation,
    "source": _source,
}


@pytest.mark.parametrize("kind", SEEN)
def test_words_that_the_glossary_replaces_do_not_occur(kind: str) -> None:
    patterns = deprecated()
    found = [
        f"{place}: {word!r} in {' '.join(text[max(0, match.start() - 40) : match.end() + 30].split())!r}"
        for place, text in SEEN[kind]()
        for word, pattern in patterns.items()
        for match in pattern.finditer(text)
    ]
    assert not found, "\n".join(["", *found])


def test_the_collector_sees_what_users_see() -> None:
    source = '"""Told."""\nx = f"is {x} told"\ny = ("beside " "it")\nz = 1\n"""An attribute, told."""\nw = "told"\n'
    assert [text for _, text in literals(source)] == ["is {} told", "beside it"]
    assert (
        prose("told\n```py\nbeside\n```\n```console\n$ x\nweighs\n```\n`told`")
        == "told\n\n```console\n$ x\nweighs\n```\n"
    )
    assert list(comments(source.replace("z = 1", "z = 1  # `told` stands"))) == [
        (1, "Told."),
        (5, "An attribute, told."),
        (4, "#  stands"),
    ]
    template = '<p class="told">{{ x.told }} is {% if told %}told{% endif %}</p>{% call of("beside it" if x else "") %}'
    assert shown(template).split() == ["is", "told", "beside", "it"]
    patterns = deprecated()
    assert len(patterns) > 40
    assert patterns["stands"].search("it stands there") and not patterns["stands"].search("X stands for Y")
    assert patterns["beside"].search("Beside it") and not patterns["beside"].search("besides")
    assert patterns["analys*"].search("analysed") and not patterns["analys*"].search("an analysis")
    assert patterns["sent back"].search("sent\nback")


def test_the_glossary_is_in_order() -> None:
    terms = GLOSSARY.read_text(encoding="utf-8").partition("\n## Terms\n")[2].partition("\n## ")[0]
    names = re.findall(r"^\| ([^|]+?) \|", terms, re.MULTILINE)[2:]
    assert names == sorted(names, key=str.lower) and len(names) > 20
