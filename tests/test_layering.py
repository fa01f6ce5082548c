"""The floors of the house: who may import whom, read from the source and seen in running interpreters."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import gradcheck_accum

PACKAGE = Path(gradcheck_accum.__file__).parent

FLOORS = [
    {"control_characters", "errors", "files", "mistakes", "portable", "run_options", "spelling", "streams", "ledger"},
    {"rule_pages", "sources", "wording"},
    {"diagnosis", "settings"},
    {"results"},
    {"comparison", "verdict", "lint", "engine"},
    {"verify"},
    {"comparing", "magics"},
    {"fuzz"},
    {"__init__"},
    {"report"},
    {"output", "server"},
    {"callbacks", "cli", "fast_path", "pytest_plugin"},
    {"__main__"},
]
"""From the ground. A room may import from lower floors only: neither from above nor from its own."""

FLOORS_WITHIN = {
    "cli": [
        {"status", "arguments"},
        {"runs", "script_arguments"},
        {"catalogue", "compare", "fuzz", "lint", "verify"},
        {"__init__"},
    ],
    "lint": [
        {"syntax"},
        {"program"},
        {"state"},
        {"control_flow"},
        {"torch_calls"},
        {"frameworks"},
        {"interpreter"},
        {"examination"},
        {"fixes"},
        {"project"},
        {"__init__"},
    ],
    "verify": [
        {"stack"},
        {"provenance", "vectors"},
        {"book"},
        {"measure"},
        {"watching"},
        {"judge"},
        {"session"},
        {"in_program", "ranks"},
        {"process"},
        {"__init__"},
    ],
}
"""The floors inside a room, from its ground, by the same rule; what only type checkers import counts too."""

APART = {"report": {"lint", "engine", "verify", "comparing", "fuzz"}, "verify": {"lint"}, "comparing": {"lint"}}
"""Rooms on lower floors that a room must do without all the same."""

THIRD_PARTY = {
    "callbacks": {"ignite", "lightning", "pytorch_lightning", "transformers", "typing_extensions"},
    "settings": {"pathspec", "tomli"},
    "lint": {"pathspec", "libcst", "typing_extensions"},  # the last for type checkers alone
    "engine": {"torch"},
    "verify": {"torch"},
    "comparing": {"torch"},
    "fuzz": {"torch", "hypothesis", "libcst"},
    "report": {"jinja2", "markupsafe", "matplotlib"},  # its page alone
    "server": {"lsprotocol", "pygls"},
    "cli": {"argcomplete"},
    "pytest_plugin": {"pytest", "_pytest"},
}
"""What a room may import besides the standard library; a room that is not here, nothing."""

FLOOR_OF = {room: number for number, floor in enumerate(FLOORS) for room in floor}


def rooms() -> list[str]:
    return sorted(p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists())


def sources(room: str) -> list[Path]:
    directory = PACKAGE / room
    return sorted(directory.rglob("*.py")) if directory.is_dir() else [PACKAGE / f"{room}.py"]


def imported(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                pytest.fail(f"{path}:{node.lineno}: relative import")
            if node.module == "gradcheck_accum":
                yield from (
                    f"gradcheck_accum.{alias.name}" if alias.name in FLOOR_OF else "gradcheck_accum.__init__"
                    for alias in node.names
                )
            else:
                yield node.module or ""


def top_level(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.parametrize("room", rooms())
def test_every_room_has_a_floor(room: str) -> None:
    assert room in FLOOR_OF


@pytest.mark.parametrize("room", rooms())
def test_imports_go_down(room: str) -> None:
    for path in sources(room):
        for name in imported(path):
            top, _, rest = name.partition(".")
            if top == "gradcheck_accum":
                other = rest.split(".")[0]
                allowed = other == room or (FLOOR_OF[other] < FLOOR_OF[room] and other not in APART.get(room, ()))
                assert allowed, f"{path} imports {name}"
            elif top not in sys.stdlib_module_names:
                assert top in THIRD_PARTY.get(room, ()), f"{path} imports {name}"


def own_modules(path: Path) -> Iterator[str]:
    """The modules of this package that a file imports, anywhere in it: ``from room import part`` is the part."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("gradcheck_accum."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradcheck_accum"):
            for alias in node.names:
                part = PACKAGE.parent.joinpath(*f"{node.module}.{alias.name}".split("."))
                is_module = part.is_dir() or part.with_suffix(".py").is_file()
                yield f"{node.module}.{alias.name}" if is_module else str(node.module)


@pytest.mark.parametrize("room", FLOORS_WITHIN)
def test_imports_go_down_within_a_room(room: str) -> None:
    floor_of = {part: number for number, floor in enumerate(FLOORS_WITHIN[room]) for part in floor}
    for path in sources(room):
        own = path.relative_to(PACKAGE / room).with_suffix("").parts[0]
        for name in own_modules(path):
            top, *parts = name.removeprefix("gradcheck_accum.").split(".")
            other = parts[0] if parts else "__init__"
            allowed = top != room or other == own or floor_of[other] < floor_of[own]
            assert allowed, f"{path} imports {name}"


def test_no_circle_among_modules() -> None:
    """What a function imports and what only type checkers do counts too; the error names the circle."""
    imports = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        imports[module] = set(own_modules(path)) - {module}
    TopologicalSorter(imports).prepare()


@pytest.mark.parametrize("package", ["gradcheck_accum", *(f"gradcheck_accum.{r}" for r in rooms() if r != "__init__")])
def test_no_module_stands_in_front_of_a_public_name(package: str) -> None:
    """An imported submodule is an attribute of its package, and a function of that name is found there no more."""
    directory = PACKAGE.parent.joinpath(*package.split("."))
    if directory.is_dir() and "__main__" not in package:
        own = {p.stem for p in directory.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
        imported = importlib.import_module(package)
        for name in own & set(getattr(imported, "__all__", ())):
            module = importlib.import_module(f"{package}.{name}")
            assert getattr(imported, name) is not module, f"{package}.{name}"


def test_no_assert_in_the_library() -> None:
    """pytest rewrites the asserts of a distribution that has a plugin, and `python -O` drops them."""
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.Assert)], path


HEAVY = {"torch", "numpy", "hypothesis", "libcst", "pytest"}


def loaded_by(code: str, cwd: Path) -> set[str]:
    """The modules that are loaded once ``code`` has run in an interpreter of its own."""
    code += "\nimport json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=cwd)
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    return set(modules)


STEPPED = "for x in data:\n    loss(x).backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
LINTED = "from gradcheck_accum.cli import main; main(['lint', 'train.py'])"


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import gradcheck_accum.cli", HEAVY | {"gradcheck_accum.lint", "gradcheck_accum.report"}),
        ("import gradcheck_accum.pytest_plugin", (HEAVY - {"pytest"}) | {"gradcheck_accum.lint"}),
        ("import gradcheck_accum.diagnosis, gradcheck_accum.results.verdict, gradcheck_accum.results.findings", HEAVY),
        ("import gradcheck_accum.lint", HEAVY | {"gradcheck_accum.verify", "gradcheck_accum.engine"}),
        (LINTED, (HEAVY - {"libcst"}) | {"gradcheck_accum.verify", "gradcheck_accum.engine"}),
        ("from gradcheck_accum.verify import verify_script", HEAVY | {"gradcheck_accum.lint"}),
        ("from gradcheck_accum.comparing import compare_script", HEAVY | {"gradcheck_accum.lint"}),
        ("from gradcheck_accum.verify import observe\nwith observe(): pass", {"gradcheck_accum.lint"}),
        ("from gradcheck_accum import fuzz", HEAVY | {"gradcheck_accum.lint", "gradcheck_accum.verify"}),
        ("from gradcheck_accum.fuzz import AccumCase", {"hypothesis", "libcst", "gradcheck_accum.lint"}),
    ],
)
def test_what_is_loaded(code: str, absent: set[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STEPPED)
    assert loaded_by(code, tmp_path) & absent == set()


def test_the_parser_is_loaded_only_where_there_is_a_loop_and_no_outcome_of_before(tmp_path: Path) -> None:
    for source, is_loaded in (("x = 1  # noqa\n", False), (STEPPED, True), (STEPPED, False)):
        for name in ("train.py", "other.py"):
            (tmp_path / name).write_text(source)
        assert ("libcst" in loaded_by(LINTED.replace("train.py", "."), tmp_path)) == is_loaded


@pytest.mark.parametrize("source", [STEPPED, STEPPED.replace("    optimizer", "optimizer")])
def test_the_repairs_are_loaded_only_where_there_is_something_to_fix(source: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    loaded = loaded_by(LINTED, tmp_path)
    assert ("gradcheck_accum.lint.fixes" in loaded) == (source != STEPPED)


SCHEDULED = """\
import torch
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
for i, x in enumerate([torch.randn(4, 6)] * 12):
    (model(x).pow(2).mean() / 4).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
    scheduler.step()
"""


@pytest.mark.parametrize("source", [STEPPED, SCHEDULED], ids=["nothing found", "a mistake without a repair"])
@pytest.mark.parametrize("option", ["--fix", "--diff", "--add-noqa", "--exit-zero"])
def test_the_repairs_are_not_loaded_where_nothing_can_be_repaired(source: str, option: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    code = f"from gradcheck_accum.cli import main; status = main(['lint', {option!r}, '--no-cache', 'train.py'])"
    assert "gradcheck_accum.lint.fixes.repairing" not in loaded_by(code, tmp_path)


def test_only_the_syntax_and_the_repairs_import_the_parser() -> None:
    importing = {path.parent.name for path in sources("lint") if "libcst" in map(top_level, imported(path))}
    assert importing == {"fixes", "syntax"}


def test_lint_has_no_other_parser() -> None:
    """What the running Python reads is not all there is: it is only asked for objections (in `sources.grammar`)."""
    importing = [path for path in sources("lint") if {"ast", "_ast", "tokenize"} & set(map(top_level, imported(path)))]
    assert importing == []


@pytest.mark.parametrize("is_page", [False, True])
def test_the_reports_load_no_engine(is_page: bool, tmp_path: Path) -> None:
    files = [path for path in sources("report") if (path.parent.name == "page") is is_page and path.stem != "__init__"]
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in files]
    loaded = loaded_by(f"import {', '.join(names)}", tmp_path)
    absent = HEAVY | {f"gradcheck_accum.{room}" for room in APART["report"]} | {"jinja2", "matplotlib"}
    assert loaded & (absent - ({"jinja2", "matplotlib", "numpy"} if is_page else set())) == set()


def test_only_the_page_draws() -> None:
    drawing = {
        path.parent.name for path in sources("report") if {"jinja2", "matplotlib"} & set(map(top_level, imported(path)))
    }
    assert drawing == {"page"}
