"""lint on programs that nobody wrote: it says what it finds, or that it cannot tell, and never falls over."""

from __future__ import annotations

import ast
import copy
import random
import tracemalloc
from pathlib import Path

import pytest

from gradcheck_accum.lint import LintError, lint_source

ROOT = Path(__file__).parents[1]
PROGRAMS = [
    path.read_text(encoding="utf-8")
    for folder in ("fixtures", "benchmarks/loops")
    for path in sorted((ROOT / folder).glob("*.py"))
]
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


def _lists(tree: ast.AST) -> list[list[ast.AST]]:
    values = [getattr(node, name, None) for node in ast.walk(tree) for name in node._fields]
    return [value for value in values if isinstance(value, list) and value and isinstance(value[0], ast.AST)]


def _mutate(program: ast.Module, pool: list[ast.AST], rng: random.Random) -> str:
    """A program with a few of its pieces dropped, doubled, swapped or replaced by pieces of others."""
    tree = copy.deepcopy(program)
    for _ in range(rng.randint(1, 5)):
        items = rng.choice(_lists(tree))
        if not items:
            continue
        here, there = rng.randrange(len(items)), rng.randrange(len(items))
        match rng.randrange(4):
            case 0:
                del items[here]
            case 1:
                items.insert(there, copy.deepcopy(items[here]))
            case 2:
                items[here], items[there] = items[there], items[here]
            case 3:
                kind = ast.stmt if isinstance(items[here], ast.stmt) else ast.expr
                items[here] = copy.deepcopy(next(n for n in rng.sample(pool, len(pool)) if isinstance(n, kind)))
    return ast.unparse(ast.fix_missing_locations(tree))


def test_mutants_of_training_loops_are_analysed_or_refused() -> None:
    rng = random.Random(0)
    trees = [ast.parse(program) for program in PROGRAMS]
    pool = [n for tree in rng.sample(trees, 20) for n in ast.walk(tree) if isinstance(n, (ast.stmt, ast.expr))]
    analysed = 0
    for _ in range(MUTANTS):
        try:
            source = _mutate(rng.choice(trees), pool, rng)
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
            assert "deep" in str(error) or "not Python" in str(error)
