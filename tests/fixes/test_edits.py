"""Edits on the tree: what is asked for is changed, comments stay with what they speak of, all else keeps its bytes."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst
import pytest

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.fixes import REPAIRED, fix_source
from gradcheck_accum.lint.fixes.edits import Edits
from gradcheck_accum.lint.fixes.repairing import REPAIRS
from gradcheck_accum.lint.fixes.script import CannotEdit, Script, Statement


def script_of(source: str) -> Script:
    return Script(source, syntax.parse(source))


def call_of(script: Script, name: str) -> cst.Call:
    """The one call of a function ``name``."""
    calls = [n for n in script.walk(script.module) if isinstance(n, cst.Call) and script.code(n.func) == name]
    (call,) = calls
    return call


def line(source: str) -> cst.SimpleStatementLine:
    parsed = cst.parse_statement(source)
    assert isinstance(parsed, cst.SimpleStatementLine)
    return parsed


def edited(source: str, edit: Callable[[Edits, Script], object]) -> str:
    script = script_of(source)
    edits = Edits(script)
    edit(edits, script)
    return edits.applied()


def removed(*names: str) -> Callable[[Edits, Script], object]:
    return lambda edits, script: [edits.remove(script.statement(call_of(script, name))) for name in names]


def added(source: str, *, before: str = "", after: str = "") -> Callable[[Edits, Script], object]:
    def edit(edits: Edits, script: Script) -> None:
        statement = script.statement(call_of(script, before or after))
        (edits.before if before else edits.after)(statement, line(source))

    return edit


def moved(name: str, *, before: str = "", after: str = "") -> Callable[[Edits, Script], object]:
    def edit(edits: Edits, script: Script) -> None:
        taken = edits.take(*(script.statement(call_of(script, one)) for one in name.split()))
        (edits.before if before else edits.after)(script.statement(call_of(script, before or after)), *taken)

    return edit


def test_each_repair_is_known_before_it_is_loaded() -> None:
    assert set(REPAIRS) == REPAIRED


# What is not changed

ODD = {
    "CRLF": "if x:\r\n\ta ( 1,\r\n\t 2 )\r\n\ttarget(0)\r\n# end\r\n",
    "CR": "if x:\r    a(1)\r    target(0)\r# end\r",
    "several ends of lines": "if x:\r\n    a(1)\n    target(0)\r\n# end\n",
    "tabs": "if x:\n\tif y :\n\t\ttarget(0)\n\telse:\n\t\tb  =  1\n",
    "one space and eight": "if x:\n target(0)\nelse:\n        b = 1\n",
    "form feeds": "\f\nif x:\n    \f\n    target(0)\n\f\n",
    "no newline at the end": "if x:\n    target(0)\nb",
    "white space at the end": "if x:\n    target(0)   \n\n   ",
    "a comment at the end": "if x:\n    target(0)\n    # one\n# two",
    "a backslash": "if x and \\\n   y: \\\n   target(0) ;\nz = 1 \\\n  + 2\n",
    "letters of several bytes": "größe = 'é€😀'; target(0); ä = 1\n",
    "strings of several lines": "x = '''\r\n  target\n'''\ntarget(0)\n\ty = 1\n".replace("\ty", "y"),
    "brackets over lines": "f(\n        a,  # one\n\n    b  # two\n  )\ntarget(0)\nd = [\n]\n",
    "a coding line": "#!/usr/bin/python\n# -*- coding: latin-1 -*-\ntarget(0)\n",
    "all sorts": "@d( 1 )\nasync def f(a, /, *, b : int=1)->int :\n\n    async with a as b :  # c\n        target(0)\n"
    "\n\n\nmatch x:\n    case {'a': [*_]} | None if y : pass\nprint(f'{x!r:>{w}}' rf'{x=}')\n",
}


@pytest.mark.parametrize("source", ODD.values(), ids=list(ODD))
def test_all_but_the_expression_keeps_its_bytes(source: str) -> None:
    def edit(edits: Edits, script: Script) -> None:
        edits.replace(call_of(script, "target").args[0].value, cst.Integer("11"))

    assert edited(source, edit) == source.replace("target(0)", "target(11)")


@pytest.mark.parametrize("source", ODD.values(), ids=list(ODD))
def test_places_are_those_of_the_text(source: str) -> None:
    before, _, _ = source.partition("target(0)")
    row = before.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    column = len(row[-1]) + 1
    found = script_of(source).find(Location("", len(row), column, len(row), column + len("target(0)")), cst.Call)
    assert found is not None and found.func.deep_equals(cst.Name("target"))


def test_a_place_that_is_none_is_not_found() -> None:
    assert script_of("a()\n").find(Location("", 7, 1, 7, 4), cst.Call) is None


UNREAD = {
    "broken": "def f(:\n",
    "a chain of and": f"x = {' and '.join(['y'] * 20_000)}\n",
    "a sum": f"x = {' + '.join(['y'] * 300)}\n",
    "branches": "if x: pass\n" + "elif y: pass\n" * 300,
}


@pytest.mark.parametrize("source", UNREAD.values(), ids=list(UNREAD))
def test_what_the_parser_cannot_be_trusted_with_is_not_edited(source: str) -> None:
    """Down a chain of 20,000 it overflows the stack of the process, or of 900 a small one; that ends the process."""
    with pytest.raises((CannotEdit, syntax.CannotParse, syntax.NestedTooDeeply)):
        script_of(source)


# Lines that are added, removed and moved

LINES = {
    "after": ("if x:\n\ta()\n\t# end\nb()\n", added("c()", after="a"), "if x:\n\ta()\n\tc()\n\t# end\nb()\n"),
    "after the last line": ("if x:\n  a()", added("c()", after="a"), "if x:\n  a()\n  c()"),
    "before, at the top": (
        "for x in y:  # each\n  # one\n\n  a()\n",
        added("c()", before="a"),
        "for x in y:  # each\n  # one\n\n  c()\n  a()\n",
    ),
    "before what has a comment": ("b()\n\n# one\na()\n", added("c()", before="a"), "b()\n\nc()\n# one\na()\n"),
    "before a paragraph": ("b()\n\n# two\na()\nd()\n", added("c()", before="a"), "b()\n\n# two\nc()\na()\nd()\n"),
    "CRLF": ("if x:\r\n\ta()\r\n", added("c()", after="a"), "if x:\r\n\ta()\r\n\tc()\r\n"),
    "removed": ("a()\nb()  # it\nc()\n", removed("b"), "a()\nc()\n"),
    "removed, with a comment above": ("a()\n# it\nb()\n\nc()\n", removed("b"), "a()\n# it\n\nc()\n"),
    "a removed paragraph": ("a()\n\nb()\n\nc()\n", removed("b"), "a()\n\nc()\n"),
    "a removed paragraph at the end": ("if x:\n  a()\n\n  b()\n\n\nc()\n", removed("b"), "if x:\n  a()\n\n\nc()\n"),
    "a removed paragraph at the top": ("#!sh\n\na()\n\nb()\n", removed("a"), "#!sh\n\nb()\n"),
    "a removed paragraph under a heading": ("#!sh\na()\n\nb()\n", removed("a"), "#!sh\n\nb()\n"),
    "two removed": ("a()\nb()\nc()\n# d\nd()\n", removed("b", "c"), "a()\n# d\nd()\n"),
    "moved": ("a()  # one\nif x:\n  b()\n", moved("a", after="b"), "if x:\n  b()\n  a()  # one\n"),
    "moved over lines": (
        "a(\n  1,  # one\n)\nif x:\n    b()\n",
        moved("a", before="b"),
        "if x:\n    a(\n      1,  # one\n    )\n    b()\n",
    ),
    "moved out": ("if x:\n  a(\n    1)\n  b()\nc()\n", moved("a", after="c"), "if x:\n  b()\nc()\na(\n  1)\n"),
    "moved with a string of several lines": (
        'a("""\n  1\n""")\nif x:\n  b()\n',
        moved("a", after="b"),
        'if x:\n  b()\n  a("""\n  1\n""")\n',
    ),
    "moved with its own comment": (
        "for x in y:\n  # the first\n  a()\n\n  # and\n  b()\n",
        moved("a", after="b"),
        "for x in y:\n  # and\n  b()\n  # the first\n  a()\n",
    ),
    "a whole paragraph moved": (
        "x()\n\n# both\na()\nb()  # one\n\nif x:\n  c()\n",
        moved("a b", before="c"),
        "x()\n\nif x:\n  # both\n  a()\n  b()  # one\n  c()\n",
    ),
    "moved from under a heading": (
        "# all of it\na()\nc()\n\nb()\n",
        moved("a", after="b"),
        "# all of it\nc()\n\nb()\na()\n",
    ),
    "moved from a line under a comment": (
        "# both\na(); b()\n\nc()\n",
        moved("a", after="c"),
        "# both\nb()\n\nc()\na()\n",
    ),
    "a whole line moved": (
        "x()\n\n# both\na(); b()  # it\n\nif x:\n  c()\n",
        moved("a b", before="c"),
        "x()\n\nif x:\n  # both\n  a()\n  b()  # it\n  c()\n",
    ),
    "moved from the top of a cell": ("# %% one\na()\n\nb()\n", moved("a", after="b"), "# %% one\n\nb()\na()\n"),
    "moved out of a line": ("a(); b()  # both\nc()\n", moved("b", after="c"), "a()  # both\nc()\nb()\n"),
    "moved out of a body on one line": ("if x: a(); b()\nc()\n", moved("a", after="c"), "if x: b()\nc()\na()\n"),
}


@pytest.mark.parametrize(("source", "edit", "expected"), LINES.values(), ids=list(LINES))
def test_a_line_is_put_where_it_belongs(source: str, edit: Callable[[Edits, Script], object], expected: str) -> None:
    assert edited(source, edit) == expected


# Statements that share a line

SHARED = {
    "after the first": ("a(); b()\n", added("c()", after="a"), "a(); c(); b()\n"),
    "after the last": ("a(); b()\n", added("c()", after="b"), "a(); b()\nc()\n"),
    "before the first": ("a(); b()\n", added("c()", before="a"), "c()\na(); b()\n"),
    "before the last": ("a(); b()\n", added("c()", before="b"), "a(); c(); b()\n"),
    "in a body on one line": ("if x: a()\n", added("c()", after="a"), "if x: a(); c()\n"),
    "at its beginning": ("if x: a();\n", added("c()", before="a"), "if x: c(); a();\n"),
    "with a comment": ("if x: a()  # one\n", added("c()  # two", after="a"), "if x: a(); c()  # one  # two\n"),
    "with a comment of its own": ("if x: a()\n", added("c()  # two", after="a"), "if x: a(); c()  # two\n"),
    "in the middle, with a comment": ("a(); b()\n", added("c()  # two", after="a"), "a(); c(); b()  # two\n"),
    "the first removed": ("a() ; b()  # it\n", removed("a"), "b()  # it\n"),
    "the last removed": ("a() ; b();  # it\n", removed("b"), "a();  # it\n"),
    "the middle removed": ("a();b() ; c()\n", removed("b"), "a();c()\n"),
    "both removed": ("x()\na(); b()  # it\nc()\n", removed("a", "b"), "x()\nc()\n"),
}


@pytest.mark.parametrize(("source", "edit", "expected"), SHARED.values(), ids=list(SHARED))
def test_a_line_of_several_statements_stays_one(
    source: str, edit: Callable[[Edits, Script], object], expected: str
) -> None:
    assert edited(source, edit) == expected


# What cannot be


def before_the_elif(edits: Edits, script: Script) -> None:
    (condition,) = [n for n in script.walk(script.module) if isinstance(n, cst.If) and script.code(n.test) == "y"]
    edits.before(condition, line("c()"))


def inside_what_goes(edits: Edits, script: Script) -> None:
    call = call_of(script, "a")
    edits.remove(script.statement(call)).replace(call.args[0].value, cst.Integer("1"))


def a_condition_in_a_line(edits: Edits, script: Script) -> None:
    condition: Statement = next(n for n in script.walk(script.module) if isinstance(n, cst.If))
    edits.after(script.statement(call_of(script, "b")), *edits.take(condition))


@pytest.mark.parametrize(
    ("source", "edit"),
    [
        ("if x:\n  a()\nb()\n", removed("a")),
        ("if x: a()\nb()\n", removed("a")),
        ("if x:\n  a()\nelif y:\n  b()\n", before_the_elif),
        ("a(x)\nb()\n", inside_what_goes),
        ("if x:\n  a()\nwhile y: b()\n", a_condition_in_a_line),
    ],
    ids=["only statement", "only one of its line", "elif", "inside what goes", "a condition in a line"],
)
def test_what_has_no_place_is_refused(source: str, edit: Callable[[Edits, Script], object]) -> None:
    with pytest.raises(CannotEdit):
        edited(source, edit)


# Names


def test_what_binds_a_name_and_what_reads_it() -> None:
    source = """\
import a.b, c as d
def e(f, *g, h=i, **j):
    global k
    (l, [m, *n]), o.p = q
    for r in s: del t
    u += v; w: x = y
    with z as A, B as (C, D): pass
    try: E
    except F as G: (H := I)
    return [J for K in L], M.N(O=P), (lambda Q: R)
"""
    script = script_of(source)
    assert script.bound(script.module) == {*"adefghjlmnrtuwACDGHKQ"}
    assert {node.value for node in script.variables(script.module)}.isdisjoint("pkNO")


# Through the public door

LOOP = """\
import torch

def train(model, loader, optimizer, criterion, K=4):
    for i, (x, y) in enumerate([next(loader)] * 8):
{}
        if (i + 1) % K == 0:
            optimizer.step()
"""


def body(text: str) -> str:
    return LOOP.format("".join(f"        {row}\n" if row else "\n" for row in text.split("\n")).removesuffix("\n"))


def fixed(source: str) -> str:
    result = fix_source(source, "train.py", unsafe=True)
    assert result.remaining == ()
    return result.source


BACKWARD = "loss = criterion(model(x), y) / K\nloss.backward()"


def test_the_comment_on_a_clearing_moves_along() -> None:
    source = body(f"# start from zero\noptimizer.zero_grad()\n\n# forward\n{BACKWARD}")
    after = body(f"# forward\n{BACKWARD}") + 12 * " " + "# start from zero\n" + 12 * " " + "optimizer.zero_grad()\n"
    assert fixed(source) == after


def test_a_heading_over_several_statements_stays() -> None:
    source = body(f"# train\noptimizer.zero_grad()\n{BACKWARD}")
    assert fixed(source) == body(f"# train\n{BACKWARD}") + 12 * " " + "optimizer.zero_grad()\n"


def test_no_two_blank_lines_are_left() -> None:
    source = body(f"{BACKWARD}\n\noptimizer.zero_grad()\n\nprint(i)")
    assert fixed(source) == body(f"{BACKWARD}\n\nprint(i)") + 12 * " " + "optimizer.zero_grad()\n"


def test_a_clearing_that_joins_a_line_swallows_nothing_of_it() -> None:
    source = body(f"optimizer.zero_grad()  # why\n{BACKWARD}").replace(
        ":\n            optimizer.step()", ": optimizer.step(); print(i)"
    )
    assert fixed(source).endswith("if (i + 1) % K == 0: optimizer.step(); optimizer.zero_grad(); print(i)  # why\n")


def test_parentheses_stay_around_what_needs_them() -> None:
    source = body("loss = 0.3 * (criterion(model(x), y) * 0.7 / K / K)\nloss.backward()")
    source += 12 * " " + "optimizer.zero_grad()\n"
    assert fixed(source) == source.replace(" / K / K)", " / K)")


def test_a_division_over_several_lines_is_taken_out() -> None:
    source = body("loss = (\n    criterion(model(x), y)\n    / K\n    / K\n)\nloss.backward()")
    source += 12 * " " + "optimizer.zero_grad()\n"
    assert fixed(source) == source.replace("            / K\n            / K\n", "            / K\n")


def test_a_loop_on_one_line_gets_its_own_number_on_it() -> None:
    source = """\
K = 3

def train(model, loader, optimizer, criterion):
    for i, (x, y) in enumerate(loader): criterion(model(x), y).backward(); step(i, loader, optimizer)

def step(i, loader, optimizer):
    if (i + 1) % K == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
"""
    own = "window = min(K, len(loader) - i // K * K); (criterion(model(x), y) / window).backward(); step"
    assert fixed(source) == source.replace("criterion(model(x), y).backward(); step", own)
