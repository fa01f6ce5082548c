"""lint on generated programs: it says what it finds, or that it cannot tell, and never falls over."""

from __future__ import annotations

import ast
import json
import random
import sys
import tracemalloc
from pathlib import Path

import pytest
from fuzz_lint import mutated
from loops_with_places import codes_in
from programs import programs

from gradcheck_accum.cli import main
from gradcheck_accum.lint import LintError, lint_source
from gradcheck_accum.lint.examination.examine import examine

PROGRAMS = programs("fixtures")
MUTANTS = 300

LOOP = """\
def train(model, loader, optimizer, criterion, K):
    {before}
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / K
        {inside}
        loss.backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.slow
def test_mutants_of_training_loops_are_analysed_or_refused() -> None:
    rng = random.Random(0)
    trees = [ast.parse(program) for program in PROGRAMS]
    pool = [n for tree in rng.sample(trees, 20) for n in ast.walk(tree) if isinstance(n, (ast.stmt, ast.expr))]
    analysed = 0
    for _ in range(MUTANTS):
        try:
            source = mutated(rng.choice(trees), pool, rng)
        except (ValueError, AttributeError, TypeError, IndexError, KeyError):
            continue  # the pieces do not fit together: not a program
        try:
            findings = lint_source(source, "train.py")
        except LintError:
            continue
        analysed += 1
        lines = source.count("\n") + 1
        assert all(1 <= finding.where.line <= lines for finding in findings)
    assert analysed > MUTANTS // 3


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("a = []", "a.append(a); a = [a, a, a]; loss = criterion(a, a)"),
        ("a = [0]", "a = a + a"),
        ("a = [0]", "a += a; a.extend(a)"),
        ("a = {}", "a['x'] = a; optimizer.add(a)"),
        ("n = 2", "n = n * n; loss = loss * n"),
        ("n = 10 ** 400", "loss = loss / n"),
        ("n = -1", "loss = loss / (n ** 0.5)"),
        ("n = 1e308 * 10", "loss = loss / n - n"),
        ("total = 0", "total = total + loss; loss = loss + loss + total"),
        ("total = 0", "for _ in range(10 ** 9): total += 1"),
        ("while True: K = K", "pass"),
        ("x = torch.zeros(10 ** 12); loader = DataLoader(x, batch_size=1)", "x.chunk(10 ** 12)"),
        ("loader = [0] * 10 ** 9", "y = loader[::0]; z = list(islice(loader, -1))"),
        ("f = lambda: f()", "f(); loss = f()"),
        ("global i", "nonlocal K"),
        ("i = K = model = None", "break"),
        ("self.K = 0", "loss = loss / 0 % 0 // 0"),
        ("class C:\n        def __call__(self, x): x.backward()", "K()(loss)(x)(); step()()"),
        ("def g(): yield g()", "next(g()); (*a, b) = c = g()"),
        ("match K:\n        case [1, *_]: K = 0", "del loss"),
        ("try: pass\n    except* ValueError: pass", "async_ = [await_ async for await_ in K]"),
    ],
)
def test_what_no_loop_does_is_no_trouble(before: str, inside: str) -> None:
    source = "import torch\nfrom torch.utils.data import DataLoader\nfrom itertools import islice\n" + LOOP.format(
        before=before, inside=inside
    )
    tracemalloc.start()
    try:
        lint_source(source, "train.py")
    except LintError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 64 * 2**20


@pytest.mark.parametrize("depth", [50, 90])
def test_deep_nesting_is_analysed_or_refused(depth: int) -> None:
    deep = "loss" + " + loss" * (depth * 40) + "; loss = " + "(" * depth + "loss" + ")" * depth
    calls = "criterion(" * depth + "x" + ")" * depth
    for inside in (f"loss = {deep}", f"loss = {calls}"):
        try:
            lint_source(LOOP.format(before="pass", inside=inside), "train.py")
        except LintError as error:
            assert "deep" in str(error) or "not valid Python" in str(error)


def test_what_takes_too_long_is_given_up_and_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradcheck_accum.lint.examination.scenarios._MOST_EVALUATIONS", 200_000)
    each_calls_three = (f"def f{i}(n):\n    f{i + 1}(n); f{i + 1}(n + 1); f{i + 1}(n + 2)\n" for i in range(30))
    path = tmp_path / "train.py"
    path.write_text("".join(each_calls_three) + "def f30(n):\n    loss.backward(); optimizer.step()\nf0(0)\n")
    assert main(["lint", "--no-cache", str(path)]) == 0
    assert "loops too long to be analyzed)." in capsys.readouterr().out


def test_a_file_of_many_faulty_loops_is_no_longer_searched_for_fixes_than_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradcheck_accum.lint.fixes._MOST_EVALUATIONS", 20_000)
    faulty = (
        LOOP.format(before="pass", inside="pass").replace(" / K", "").replace("== 0:", "== 0 or i + 1 == len(loader):")
    )
    path = tmp_path / "train.py"
    path.write_text("".join(faulty.replace("def train", f"def train{i}") for i in range(12)))
    assert main(["lint", "--no-cache", "--output-format", "json", str(path)]) == 1
    fixes = [finding["fix"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert len(fixes) == 12
    assert 0 < sum(fix is not None for fix in fixes) < 12


PATHOLOGICAL = {
    "parentheses": ("x = " + "(" * 5000 + "1" + ")" * 5000, 2),
    "attributes": ("x = a" + ".b" * 20_000, 2),
    "signs": ("x = " + "-" * 6000 + "1", 2),
    "elifs": ("if a: pass\n" + "".join(f"elif a == {i}: pass\n" for i in range(5000)), 2),
    "lambdas": ("f = " + "lambda: " * 2000 + "1", 0),
    "a null byte": ("x = 1\0", 2),
    "a lone surrogate in a string": ("x = '\\ud800'", 0),
    "a huge number": (f"K2 = 9 ** 9 ** 9; K3 = 1 << 10 ** 10; K4 = {'9' * 4000}", 0),
    "a huge string": ("s = 'a' * 10 ** 12; t = [0] * 10 ** 12", 0),
    "a long line": (f"x = [{'1, ' * 100_000}]", 0),
    "a call of itself": ("def f(n):\n    f(n - 1); f(n - 2)\nf(100)", 0),
    "its own base": ("class A(A):\n    pass\nA().f()", 0),
}


def assert_answered(path: Path, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    """lint ends with this exit status, and says one clear line if it is 2."""
    answered = main(["lint", "--no-cache", str(path)])
    # Python 3.14 reads deeper than the versions before.
    assert answered == status or (answered == 0 and sys.version_info >= (3, 14))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (answered == 2)
    assert all(line.startswith("gradcheck-accum: ") and "internal error" not in line for line in lines)


@pytest.mark.parametrize(
    ("piece", "status"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.slow] if name in ("lambdas", "a long line") else [])
        for name, case in PATHOLOGICAL.items()
    ],
)
def test_one_clear_line_or_an_answer(
    piece: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    loop = LOOP.format(before="pass", inside="pass").replace("== 0:", "== 0 or i + 1 == len(loader):")
    path.write_text(f"{loop.replace('/ K', '/ min(K, len(loader) - i // K * K)')}{piece}\n")
    assert_answered(path, status, capsys)


CELL = b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": %s}]}'
NOTEBOOKS = {
    "brackets": (b"[" * 100_000, 2),
    "a number too long for Python": (b'{"nbformat": ' + b"9" * 10_000 + b"}", 2),
    "a lone surrogate": (CELL % b'"x = \\"\\ud800\\""', 2),
    "a null byte": (CELL % b'"x = 1\\u0000"', 2),
    "no source": (CELL % b"1", 2),
    "no cells": (b'{"nbformat": 4, "cells": []}', 0),
    "UTF-16": (b"\xff\xfe", 2),
}


@pytest.mark.parametrize(("content", "status"), NOTEBOOKS.values(), ids=list(NOTEBOOKS))
def test_one_clear_line_for_a_strange_notebook(
    content: bytes, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.ipynb"
    path.write_bytes(content)
    assert_answered(path, status, capsys)


def test_an_endless_file_is_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "/dev/zero"]) == 2
    assert capsys.readouterr().err == "gradcheck-accum: /dev/zero: larger than 4 MiB, not analyzed\n"


def test_thousands_of_steps_without_a_clearing_are_given_up() -> None:
    source = "loss.backward()\noptimizer.step()\n" * 3_000
    examination = examine(source, "train.py")
    assert (examination.not_followed, examination.evidence) == (1, ())


@pytest.mark.slow
def test_a_number_that_only_reports_go_by_does_not_keep_a_loop_from_being_followed() -> None:
    reports = "\n".join(f"            figures[{n}] = norms(model, batch, {n}) + figures[{n}]" for n in range(100))
    source = f"""\
def train(model, loader, optimizer, K=4):
    for epoch in range(3):
        for i, batch in enumerate(loader):
            (model(batch).mean() / K).backward()
{reports}
            if i % {{every}} == 0:
                print(figures)
            if (i + 1) % {{steps}} == 0:
                optimizer.step()
                optimizer.zero_grad()
"""
    assert codes_in(source.format(every=50, steps="K")) == ["GA301"]
    assert examine(source.format(every=50, steps=60), "train.py").not_followed == 1


MANY = """\
def train{number}(model, loader, optimizer, criterion):
    for i, (x, y) in enumerate(loader):
        criterion(model(x), y).backward()
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_what_no_fix_was_looked_for_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradcheck_accum.lint.fixes._MOST_EVALUATIONS", 5_000)
    path = tmp_path / "train.py"
    path.write_text("import torch\n" + "".join(MANY.format(number=i) for i in range(3)))
    assert main(["lint", "--no-cache", str(path)]) == 1
    summary = capsys.readouterr().out.splitlines()
    (said,) = (line for line in summary if line.startswith("No fix was tried for "))
    fixable = sum(line.startswith("fix: ") for line in summary)
    assert said.startswith(f"No fix was tried for {6 - fixable} findings: the file has too many loops")
    assert main(["lint", "--no-cache", "--output-format", "json", str(path)]) == 1
    assert json.loads(capsys.readouterr().out)["summary"]["fixes_left_out"] == 6 - fixable
    monkeypatch.undo()
    path.write_text("import torch\n" + MANY.format(number=0))
    assert main(["lint", "--no-cache", str(path)]) == 1
    assert "No fix was tried" not in capsys.readouterr().out


@pytest.mark.slow
def test_many_short_loops_are_all_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradcheck_accum.lint.examination.scenarios._MOST_EVALUATIONS", 10_000)
    path = tmp_path / "train.py"
    path.write_text("import torch\n" + "".join(MANY.format(number=i) for i in range(12)))
    assert main(["lint", "--no-cache", "--select", "GA101", str(path)]) == 1
    said = capsys.readouterr().out
    assert said.count("GA101") == 12
    assert "too long to be analyzed" not in said


def test_a_range_without_bounds_is_analysed() -> None:
    """It fails when it runs; that is the program's own error."""
    source = """\
def train(model, loader, optimizer):
    batches = iter(loader)
    for _ in range():
        model(next(batches)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    assert lint_source(source, "train.py") == []
