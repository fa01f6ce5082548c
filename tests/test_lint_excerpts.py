"""Large files are read by what of them can matter to training; what is found stays the same."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradcheck_accum.lint import lint_source
from gradcheck_accum.lint.examination.collecting import set_aside, without_collecting
from gradcheck_accum.lint.program.excerpts import excerpt

HERE = Path(__file__).resolve().parent
OWN = sorted([*HERE.glob("*.py"), *HERE.parent.glob("gradcheck_accum/**/*.py")])

LOOP = """
def train(model, optimizer, loader, criterion, args):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = compute(model, criterion, x, y)
        loss.backward()
        if (i + 1) % args.accum == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()


def compute(model, criterion, x, y):
    return criterion(model(x), y)


if __name__ == "__main__":
    main()
"""


def filler(number: int) -> str:
    """A function that no training needs, with all that a cut could go wrong at."""
    return f'''
@decorated(
    "a ) string", (1,
2))
async def unused_{number}(
    first, second="""
def no_definition():
    train
""",
) -> int:
    # backward() of a comment
    text = """
class NoClass:
"""
    return {{"a": [first,
(second)], 'b': "it's"}}[text]

'''


def large(loop: str) -> str:
    return "import torch\n" + "".join(map(filler, range(120))) + loop + "".join(map(filler, range(120, 250)))


def found(source: str) -> list[tuple[str, int, int, str]]:
    findings = lint_source(source, "train.py")
    return [(f.mistake.code, f.where.line, f.where.column, f.text) for f in findings]


def names_in(text: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def test_what_trains_stays_where_it_is_and_the_rest_is_left_out() -> None:
    source = large(LOOP)
    part = excerpt(source)
    assert names_in(part) == {"train", "compute"}
    assert not any(isinstance(node, ast.AsyncFunctionDef) for node in ast.walk(ast.parse(part)))
    place = source[: source.index("def train(")].count("\n")
    count = LOOP.strip().count("\n") + 1
    assert part.split("\n")[place : place + count] == source.split("\n")[place : place + count]


def test_the_findings_of_a_large_file_are_those_of_a_small_one_further_down() -> None:
    (code, line, column, text), *others = found(LOOP)
    assert (code, others) == ("GA101", [])
    source = large(LOOP)
    below = source[: source.index(LOOP)].count("\n")
    assert len(source) > 48 * 1024
    assert found(source) == [("GA101", line + below, column, text)]


def test_a_right_loop_in_a_large_file_is_right_because_of_its_helper() -> None:
    right = LOOP.replace("return criterion(model(x), y)", "return criterion(model(x), y) / args.accum").replace(
        "if __name__", "args = parser.parse_args()\n\nif __name__"
    )
    assert [code for code, *_ in found(right)] == [code for code, *_ in found(large(right))]
    assert "GA101" not in [code for code, *_ in found(large(right))]


def test_methods_that_code_elsewhere_may_call_stay_and_those_of_a_test_runner_go() -> None:
    source = """
class Base:
    def run(self):
        self.loss().backward()
        self.optimizer.step()

    def hook(self):
        return 1

    def test_nothing(self):
        return 2

    def test_all(self):
        self.run()


class Other:
    def test_nothing_here(self):
        return 3


class Named(Base, metaclass=Meta):
    inner = 1


def unnamed():
    return Named()


def entrance():
    Named().run()
"""
    assert names_in(excerpt(source)) == {"Base", "run", "hook", "test_all", "Named", "entrance"}


def test_an_excerpt_has_the_lines_of_its_source_and_every_definition_that_its_code_mentions() -> None:
    for path in OWN:
        source = path.read_text(encoding="utf-8")
        part = excerpt(source)
        tree = ast.parse(part)
        assert part.count("\n") == source.count("\n"), path
        defined = {node.name for node in ast.parse(source).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        mentioned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert defined & mentioned <= names_in(part), path


def test_a_name_after_a_sign_in_a_string_is_mentioned_and_one_in_documentation_is_not() -> None:
    source = """
def used():
    return 1

def also_used():
    return 2

def only_documented():
    return 3

def train(loss, optimizer):
    '''Calls only_documented.'''
    title = "# of" + used() + f'''{also_used()}'''  # only_documented
    loss.backward()
"""
    assert names_in(excerpt(source)) == {"used", "also_used", "train"}


@pytest.fixture
def _nothing_set_aside() -> Iterator[None]:
    was_set_aside = gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    if was_set_aside:
        gc.freeze()


@pytest.mark.usefixtures("_nothing_set_aside")
def test_the_collector_is_left_as_it_was() -> None:
    with without_collecting(), set_aside():
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 0
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    gc.disable()
    try:
        with without_collecting():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.usefixtures("_nothing_set_aside")
def test_what_another_has_set_aside_stays_so() -> None:
    gc.freeze()
    try:
        with set_aside():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
