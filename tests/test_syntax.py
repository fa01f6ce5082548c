"""The syntax that lint reads: LibCST's tree lowers to what the standard library's does, and to more than that."""

from __future__ import annotations

import ast
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider
from loop_pages import written_loops
from syntax_from_ast import lower as lower_from_ast

import gradcheck_accum
from gradcheck_accum.lint import LintError, lint_source, syntax
from gradcheck_accum.lint.fixes import fix_source
from gradcheck_accum.lint.syntax.places import walked

PACKAGE = Path(gradcheck_accum.__file__).parent
ROOT = Path(__file__).resolve().parents[1]


def difference(one: Any, other: Any, at: str = "", placed: bool = True) -> str:
    """The first place at which two pieces of syntax differ, but for what they were made of; nothing where they do not.

    Before Python 3.12 `ast` does not know where the values in a string stand.
    """
    if type(one) is not type(other):
        return f"{at}: {one!r} and {other!r}"
    if isinstance(one, tuple):
        if len(one) != len(other):
            return f"{at}: {len(one)} and {len(other)} parts"
        found = (difference(a, b, f"{at}[{i}]", placed) for i, (a, b) in enumerate(zip(one, other, strict=True)))
        return next(filter(None, found), "")
    if not isinstance(one, syntax.Node):
        return "" if repr(one) == repr(other) else f"{at}: {one!r} and {other!r}"
    placed = placed and (sys.version_info >= (3, 12) or not isinstance(one, syntax.FormattedValue))
    fields = [name for name in one.FIELDS if name != "origin" and (placed or name != "where")]
    at = f"{at}.{type(one).__name__}" if at else f"{one.where}"
    found = (difference(getattr(one, name), getattr(other, name), f"{at}.{name}", placed) for name in fields)
    return next(filter(None, found), "")


def compared(text: str, path: str = "script.py") -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    return difference(syntax.parse(text, path), lower_from_ast(tree, text, path))


EVERYTHING = '''\
"""Every kind of statement and expression."""
from __future__ import annotations
import os.path, sys as system
from . import a as b
from ..c.d import (e, f as g,)
from x import *
@decorated
@decorated.more(1)
async def f(a, /, b: int = (1), *c: (str), d, e=2, **k) -> None:
    global g, h
    async with a as b, c: await d
    async for i, (j, *k.l) in m: yield
    else: yield i
    return [x async for x in y if z if w]
def g(*, a=1): nonlocal_ = yield from a; return
class C(A, *bases, metaclass=M, **more):
    x: int; y: (str) = 2
    a.b: int
if a: pass
elif b: x = 1; del a, b; del (c, d), e.f
else:
    pass
for x.y, z[0] in 1, 2: break
while not x is None: continue
else: raise
try: assert a, b
except (A, B) as e: raise X from y
except: pass
else: ...
finally: x += 1; y @= 2; z //= 3; w **= (4); v >>= 1; u <<= 1; t |= 1; s ^= 1; r &= 1; q %= 1; p -= 1; o *= 1; n /= 2
with (open(a) as b, c): pass
with (yield): pass
match x, y:
    case 1 | -2.5 | "a" "b" | None if z: pass
    case [a, *_] | (b, c, *rest): pass
    case (d, e): pass
    case {"k": v, None: w, A.b: 1, **others}: pass
    case C(1, x=D.e, y=[]) as whole: pass
    case ((_)): pass
a = b, = c = 1,
x = (y := 2), [z := 3]
f(a, *b, c=d, **e); f(x for x in y); f((x for x in y)); f(  # (
    x for (x, y) in z); (f)(*a, k=(1)); f(a for b in c)(d)
l = lambda: 0; l = lambda a, /, b=1, *c, d=2, e, **k: (a, b)
n = 0, 00, 1_000, 0xFF, 0b1, 0o7, 1.5, 1e3, 1j, 1_0.0J, ..., True, False, None
s = 'a' "b" r'\\n' if 0 else "é\\n\\x41" """x
y"""; t = b'a' rb"\\b"
z = f"{a}" 'b' f"{c!r:>{w}.{p}} {{}} {d=}"; z = f"""{
x}"""
u = -a ** -b; u = not a; u = ~a + +b; u = (a + b) * c - d // e % g @ h / i; u = a << b >> c & d ^ e | g
v = a or b or (c or d) and e and not g or h; v = (a or b) or c
w = a < b <= c != d is not e not in g in h is i > j >= k == l
x = a if b else c if d else e
y = a[b], a[b:], a[:c:d], a[b, c], a[b,], a[::, e], a[(f, g)], a[(h):(i)], a[b : ], a[b, : ]
z = {}, {a: b, **c, (d): (e)}, {a, *b}, [*a, b], (), (a,), ((a, b)), {a: b for a, b in c}, {a for a in b}
é = x.ü; é.f(y)
'''


def test_everything_lowers_alike() -> None:
    assert compared(EVERYTHING) == ""


@pytest.mark.parametrize("line_break", ["\r\n", "\r", "\n\t \f"])
def test_line_breaks_move_nothing(line_break: str) -> None:
    text = "import a\nif b:\n    c.d(e)  # é\n    '''f\n    g''' + h.i\n"
    text = text + line_break[1:] if line_break[0] == "\n" else text.replace("\n", line_break)
    assert compared(text) == ""


FILES = [
    *sorted((ROOT / "fixtures").glob("*.py")),
    *sorted((PACKAGE / "lint").rglob("*.py"))[::2],
    *sorted((Path(cst.__file__).parent / "_nodes").glob("*.py"))[:2],
    *sorted(Path(pytest.__file__).parent.glob("*.py")),
]
LOOPS = [*written_loops().items()][::9]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_two_trees_lower_alike(path: Path) -> None:
    assert compared(path.read_text(encoding="utf-8"), str(path)) == ""


@pytest.mark.parametrize(("name", "source"), LOOPS, ids=[name for name, _ in LOOPS])
def test_the_two_trees_of_a_loop_lower_alike(name: str, source: str) -> None:
    assert compared(source, f"{name}.py") == ""


def test_places_are_those_of_the_library() -> None:
    """The walk that finds them is one of LibCST's own, but not one that it promises."""
    module = cst.parse_module(EVERYTHING)
    theirs = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
    lines = EVERYTHING.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    for node, (start, _) in walked(module).spans.items():
        if not isinstance(node, cst.BaseSuite):
            position = theirs[node].start
            assert starts[position.line - 1] + position.column == start, node


def test_nodes_are_frozen_and_themselves() -> None:
    first, second = (syntax.parse("x = 1\n").body[0] for _ in range(2))
    assert first != second and len({first, second}) == 2
    with pytest.raises(AttributeError):
        first.where = second.where  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del first.where  # type: ignore[misc]


def test_what_is_written_means_the_same() -> None:
    part = (syntax.Slice, syntax.Starred)
    for node in syntax.walk(syntax.parse(EVERYTHING)):
        is_part = isinstance(node, part) or any(isinstance(child, syntax.Slice) for child in syntax.children(node))
        is_index = is_part and not isinstance(node, syntax.Subscript)
        if isinstance(node, syntax.Expression) and not is_index and "\n" not in syntax.text_of(node):
            (again,) = syntax.parse(f"({syntax.text_of(node)})").body
            assert isinstance(again, syntax.Expr)
            assert syntax.text_of(again.value) == syntax.text_of(node)


LOOP = """\
def train(model, loader, optimizer, criterion, K{more}):
    {before}
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        {inside}
        loss.backward()
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""

NEWER = {
    "3.11: groups of exceptions": {"before": "try: pass\n    except* OSError: pass"},
    "3.12: parameters of types": {"before": "def f[T: int, *Ts, **P](a: T) -> T: return a"},
    "3.12: names of types": {"before": "type Batch[T] = tuple[T, int]"},
    "3.12: quotes inside of a string": {"inside": """log(f"{d["k"]} {f'{f"{1}"}'}")"""},
    "3.12: a backslash inside of a string": {"inside": """log(f"{'\\n'.join(names)}")"""},
    "3.13: defaults of types": {"before": "class A[T = int]: pass"},
    "3.14: templates": {"inside": 'log(t"{loss!r:>{width}}")'},
    "3.14: exceptions without parentheses": {"before": "try: pass\n    except OSError, ValueError: pass"},
}


READ_SINCE = {"3.14": (1, 8, 4)}
"""The LibCST that first reads what is new in a Python, where it is later than the lowest that is declared."""
LIBCST = tuple(map(int, version("libcst").split(".")[:3]))
NEWER_CASES = [
    pytest.param(
        pieces,
        id=label,
        marks=pytest.mark.skipif(READ_SINCE.get(label[:4], LIBCST) > LIBCST, reason="this LibCST does not read it"),
    )
    for label, pieces in NEWER.items()
]


@pytest.mark.parametrize("pieces", NEWER_CASES)
def test_source_newer_than_the_running_python_is_read(pieces: dict[str, str]) -> None:
    source = LOOP.format(**{"more": "", "before": "pass", "inside": "pass", **pieces})
    assert [(f.mistake.code, f.where.line) for f in lint_source(source, "train.py")] == [
        ("GA101", 6 + source[: source.index("loss.backward")].count("\n") - 5)
    ]


@pytest.mark.parametrize("pieces", NEWER_CASES)
def test_a_newer_source_without_a_loop_is_nothing_to_complain_about(pieces: dict[str, str]) -> None:
    source = LOOP.format(**{"more": "", "before": "pass", "inside": "pass", **pieces}).replace(".backward", ".forward")
    assert lint_source(source, "train.py") == []


OLDER = "x, y = x.cuda(async=True), y.cuda(async = True)  # async=True copies meanwhile"


def test_a_script_from_before_async_was_a_keyword_is_read() -> None:
    source = LOOP.format(more="", before="pass", inside=OLDER)
    assert [f.mistake.code for f in lint_source(source, "train.py")] == ["GA101"]
    result = fix_source(source, "train.py", unsafe=True)
    assert (result.source, len(result.remaining)) == (source, 1), "what the fix cannot write back, it leaves alone"


@pytest.mark.parametrize("inside", ["x.cuda(async)", "if async == 1: pass", "x.cuda(async=)", f"{OLDER}\n    print x"])
def test_async_as_a_name_makes_no_other_text_python(inside: str) -> None:
    with pytest.raises(LintError, match=r"^not valid Python"):
        lint_source(LOOP.format(more="", before="pass", inside=inside), "train.py")


def test_what_libcst_cannot_read_is_not_called_invalid() -> None:
    source = LOOP.format(more="", before="(count): int = 0", inside="pass")
    ast.parse(source)
    with pytest.raises(LintError, match=r"^LibCST cannot read it \(line 2\)$"):
        lint_source(source, "train.py")


@pytest.mark.parametrize("chain", [" and a" * 30_000, ".b" * 30_000, ".b(1)" * 30_000], ids=["and", "names", "calls"])
def test_what_would_overflow_the_parser_is_not_given_to_it(chain: str) -> None:
    with pytest.raises(LintError, match="nested too deeply"):
        lint_source(LOOP.format(more="", before=f"x = a{chain}", inside="pass"), "train.py")
