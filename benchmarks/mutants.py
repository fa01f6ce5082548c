"""Whether the suite notices a change of the engines: samples of mutants, each run against the tests that cover it.

    python benchmarks/mutants.py MODULE ... [--sample N] [--seed S] [--lines L,L] [--tests FILE ...]

A module is named as `ledger/windows`. One change at a time is made in a copy of the repository: a comparison turned
round or made strict, `and` for `or`, a dropped `not`, a number off by one, True for False, `any` for `all`, a sum for a
difference, nothing returned, a condition that never holds, a statement removed. Tests run until one fails: that kills
the mutant. What survives is printed with its line; whether it changes anything that anybody sees is for people to say.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from itertools import accumulate
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

ROOT = Path(__file__).parents[1]

_BY_HAND = ["tests/test_roles_by_hand.py", "tests/test_diagnosis_limits.py", "tests/test_diagnosis.py"]
COVERED_BY = {
    "ledger": [*_BY_HAND, "tests/test_passes.py", "tests/test_same_number.py"],
    "diagnosis": _BY_HAND,
    "engine/tolerance": ["tests/test_tolerance.py"],
    "lint": ["tests/test_lint.py", "tests/test_lint_*.py"],
    "lint/interpreter/machine": [
        "tests/lint_doors/test_imported_modules.py",
        "tests/test_lint.py",
        "tests/test_lint_*.py",
    ],
}
"""The quick tests that cover a module, by the longest of these names that its own begins with; the quickest first."""

LEFT_OUT = {"tests/test_lint_real_code.py", "tests/test_lint_robust.py", "tests/test_lint_scaler.py"}
"""What takes long, or asks PyTorch."""

MEMORY = 16 << 30
"""Bytes of addresses that a mutant may take."""

SLOWER = 4
"""How many times as long as the unchanged code a mutant may take; one that never ends is killed by that."""

_COMPARISONS: dict[type[cst.BaseCompOp], tuple[cst.BaseCompOp, ...]] = {
    cst.Equal: (cst.NotEqual(),),
    cst.NotEqual: (cst.Equal(),),
    cst.LessThan: (cst.LessThanEqual(), cst.GreaterThanEqual()),
    cst.LessThanEqual: (cst.LessThan(), cst.GreaterThan()),
    cst.GreaterThan: (cst.GreaterThanEqual(), cst.LessThanEqual()),
    cst.GreaterThanEqual: (cst.GreaterThan(), cst.LessThan()),
    cst.In: (cst.NotIn(),),
    cst.NotIn: (cst.In(),),
    cst.Is: (cst.IsNot(),),
    cst.IsNot: (cst.Is(),),
}
_SWAPPED = {"any": "all", "all": "any", "min": "max", "max": "min", "True": "False", "False": "True"}
_ARITHMETIC: dict[type[cst.BaseBinaryOp], cst.BaseBinaryOp] = {
    cst.Add: cst.Subtract(),
    cst.Subtract: cst.Add(),
    cst.Multiply: cst.Divide(),
    cst.Divide: cst.Multiply(),
}
_NONE, _FALSE = cst.Name("None"), cst.Name("False")


@dataclass(frozen=True)
class Mutant:
    """One change of a module."""

    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"line {self.line}: `{' '.join(self.before.split())}` -> `{' '.join(self.after.split())}`"


class _Sites(cst.CSTVisitor):
    """The places of a module at which something can be changed, each with what may stand there instead."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, cst.CSTNode, cst.CSTNode, cst.CSTNode]] = []

    def _add(self, node: cst.CSTNode, *changed: cst.CSTNode, around: cst.CSTNode | None = None) -> None:
        line = self.get_metadata(PositionProvider, node).start.line
        self.found += [(line, around or node, node, other) for other in changed]

    def visit_Annotation(self, node: cst.Annotation) -> bool:
        return False

    def visit_Decorator(self, node: cst.Decorator) -> bool:
        return False

    def visit_Comparison(self, node: cst.Comparison) -> None:
        for target in node.comparisons:
            around = {"whitespace_before": cst.SimpleWhitespace(" "), "whitespace_after": cst.SimpleWhitespace(" ")}
            for operator in _COMPARISONS.get(type(target.operator), ()):
                self._add(target.operator, operator.with_changes(**around), around=node)

    def visit_BooleanOperation(self, node: cst.BooleanOperation) -> None:
        other = cst.Or() if isinstance(node.operator, cst.And) else cst.And()
        self._add(node.operator, other, around=node)

    def visit_UnaryOperation(self, node: cst.UnaryOperation) -> None:
        if isinstance(node.operator, cst.Not):
            self._add(node, node.expression)

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        other = _ARITHMETIC.get(type(node.operator))
        if other is not None:
            self._add(node.operator, other, around=node)

    def visit_Integer(self, node: cst.Integer) -> None:
        self._add(node, cst.Integer(str(node.evaluated_value + 1)))

    def visit_Float(self, node: cst.Float) -> None:
        self._add(node, cst.Float(str(node.evaluated_value + 1)))

    def visit_Name(self, node: cst.Name) -> None:
        if node.value in _SWAPPED:
            self._add(node, cst.Name(_SWAPPED[node.value]))

    def visit_Return(self, node: cst.Return) -> None:
        if node.value is not None and not node.value.deep_equals(_NONE):
            self._add(node, cst.Return(_NONE))

    def visit_If(self, node: cst.If) -> None:
        self._add(node.test, _FALSE, around=node.test)

    def visit_Expr(self, node: cst.Expr) -> None:
        if not isinstance(node.value, cst.SimpleString | cst.ConcatenatedString):
            self._add(node, cst.Pass())

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._add(node, cst.Pass())


def mutants(text: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    wrapper = MetadataWrapper(cst.parse_module(text))
    sites = _Sites()
    wrapper.visit(sites)
    places = wrapper.resolve(PositionProvider)
    starts = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]
    found = []
    for line, around, old, new in sorted(sites.found, key=lambda site: site[0]):
        changed = new if around is old else around.deep_replace(old, new)
        assert isinstance(changed, cst.CSTNode)
        after = wrapper.module.code_for_node(changed)
        place = places[around]
        start, end = (starts[at.line - 1] + at.column for at in (place.start, place.end))
        found.append(Mutant(line, text[start:end], after, text[:start] + after + text[end:]))
    return found


def tests_of(module: str) -> list[str]:
    """The test files that cover a module."""
    name = max((own for own in COVERED_BY if module.startswith(own)), key=len, default="")
    if not name:
        sys.exit(f"mutants: no tests are listed for {module}: name them with --tests")
    found = [str(p.relative_to(ROOT)) for pattern in COVERED_BY[name] for p in sorted(ROOT.glob(pattern))]
    return [path for path in dict.fromkeys(found) if path not in LEFT_OUT]


def passes(copy: Path, tests: Sequence[str], limit: float | None) -> bool:
    """Whether the tests pass in a copy of the repository, in time.

    They run in a fork of this process, which has imported PyTorch and pytest and nothing of ours.
    """
    child = os.fork()
    if not child:
        os.setsid()
        os.chdir(copy)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        with open(copy / "output.txt", "w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = str(copy)
        import pytest

        os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))
    until = time.monotonic() + limit if limit else None
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        if until and time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(0.2)


def run(copy: Path, module: str, drawn: Sequence[Mutant], tests: Sequence[str]) -> list[Mutant]:
    """The mutants that survive."""
    path = copy / "gradcheck_accum" / f"{module}.py"
    before = path.read_text(encoding="utf-8")
    started = time.monotonic()
    if not passes(copy, tests, None):
        sys.exit(f"mutants: {' '.join(tests)} fail without any change:\n{(copy / 'output.txt').read_text()[-3000:]}")
    limit = 30 + SLOWER * (time.monotonic() - started)
    survivors = []
    for mutant in drawn:
        path.write_text(mutant.source, encoding="utf-8")
        Path(cache_from_source(str(path))).unlink(missing_ok=True)  # it may be as old and as long as the next
        survives = passes(copy, tests, limit)
        print(f"{module}: {'SURVIVES' if survives else 'killed'}: {mutant}", file=sys.stderr, flush=True)
        survivors += [mutant] if survives else []
    path.write_text(before, encoding="utf-8")
    Path(cache_from_source(str(path))).unlink(missing_ok=True)
    return survivors


def copied(folder: str) -> Path:
    """A copy of what git knows of the repository, and of what it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    copy = Path(folder) / "copy"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    return copy


def _numbers(text: str) -> set[int]:
    return {int(number) for number in text.split(",")}


def main() -> None:
    parser = argparse.ArgumentParser(description="Run samples of mutants against the tests that cover them.")
    parser.add_argument("modules", nargs="+", metavar="MODULE", help="as ledger/windows")
    parser.add_argument("--sample", type=int, default=8, help="how many mutants of each are drawn (default: 8)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--lines", type=lambda text: {int(n) for n in text.split(",")}, help="all mutants of these lines"
    )
    parser.add_argument("--tests", nargs="+", help="test files to run instead of those that are listed")
    given = parser.parse_args()
    import torch  # noqa: F401  # the forks have it then

    rows = ["| module | sites | mutants | killed | survivors |", "| --- | --- | --- | --- | --- |"]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = copied(folder)
        for module in given.modules:
            every = mutants((ROOT / "gradcheck_accum" / f"{module}.py").read_text(encoding="utf-8"))
            if given.lines:
                drawn = [mutant for mutant in every if mutant.line in given.lines]
            else:
                drawn = random.Random(f"{given.seed} {module}").sample(every, min(given.sample, len(every)))
            survivors = run(copy, module, sorted(drawn, key=lambda own: own.line), given.tests or tests_of(module))
            cells = [module, len(every), len(drawn), len(drawn) - len(survivors), "; ".join(map(str, survivors)) or "-"]
            rows.append(f"| {' | '.join(map(str, cells))} |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
