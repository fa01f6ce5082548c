"""Which versions the suite was run on: writes docs/versions.md.

    python benchmarks/versions_table.py [ROW ...]

For each row an environment is built with uv, a selection of the suite is run there, and it is removed. The lines of
rows that are not named stay as they are. ``UV_TORCH_BACKEND=cpu`` takes PyTorch's builds for CPUs where their index can
be reached; else it comes from PyPI, with CUDA.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "versions.md"
NOTES = ROOT / "benchmarks" / "versions_notes.md"

SELECTIONS = {
    "lint": [
        "tests/test_lint*.py",
        "tests/test_syntax.py",
        "tests/test_server.py",
        "tests/lint_doors/test_*.py",
        "tests/fixes/test_edits.py",
        "tests/fixes/test_fixing_files.py",
    ],
    "verify": [
        "tests/test_by_parameter.py",
        "tests/test_counted_but_not_run.py",
        "tests/test_in_place.py",
        "tests/test_linear_judging.py",
        "tests/test_memory.py",
        "tests/test_provenance.py",
        "tests/test_reference.py",
        "tests/test_shadow_step.py",
        "tests/test_watch.py",
        "tests/test_weighted_losses.py",
        "tests/distributed/test_shards.py",
    ],
}
"""Patterns of the files that are run: all of lint's that need no PyTorch, of verify's one or two for a capability."""

MARKED = {"lint": "not slow and not thorough", "verify": "slow or not slow"}
"""The tests of ranks are slow ones, and lint's take minutes."""

SHOWN = ("torch", "libcst", "pytest", "hypothesis")
"""The distributions whose versions the table has."""
LIBRARIES = {
    "lint": ["libcst", "pathspec", "pytest", "hypothesis", "pygls", "pyyaml"],
    "verify": ["libcst", "pathspec", "pytest", "hypothesis", "torch", "numpy", "jsonschema"],
}
NOT_LOADED = 'triton; python_version < "0"'
"""What PyTorch asks for and no test on a CPU loads: some hundred megabytes."""


@dataclass(frozen=True)
class Row:
    """One line of the table: ``pinned`` are versions other than the newest; ``oldest`` takes each at its lowest."""

    selection: str
    python: str
    oldest: bool = False
    pinned: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the row is called on the command line."""
        return "-".join([self.selection, self.python, *(["oldest"] if self.oldest else self.pinned)])

    def requirements(self) -> list[str]:
        """What is installed in addition to this package."""
        pinned = {Requirement(text).name: text for text in self.pinned}
        if self.oldest:
            pinned = lowest()
        return [pinned.get(name, name) for name in [*LIBRARIES[self.selection], *({"tomli"} & pinned.keys())]]


ROWS = [
    Row("lint", "3.10", oldest=True),
    *(Row("lint", python) for python in ("3.11", "3.12", "3.13", "3.14")),
    Row("verify", "3.10", oldest=True),
    Row("verify", "3.10"),
    Row("verify", "3.11", pinned=("torch==2.7.0",)),
    Row("verify", "3.12"),
    Row("verify", "3.13"),
    Row("verify", "3.14"),
]


def lowest() -> dict[str, str]:
    """The lowest versions that pyproject.toml declares, by name; of what it bounds nowhere, nothing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"]["test"])]
    bounds = {r.name: [s.version for s in r.specifier if s.operator == ">="] for r in declared}
    return {name: f"{name}=={found[0]}" for name, found in bounds.items() if found}


def measured(row: Row) -> str:
    """The line of a row, from a run in an environment of its own; nothing where there is no such Python."""
    print(row.name, file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="versions-") as folder:
        environment, report, unwanted = (Path(folder) / name for name in ("env", "report.xml", "unwanted.txt"))
        python = environment / "bin" / "python"
        if uv("venv", "--quiet", "--python", row.python, str(environment)).returncode:
            return ""
        unwanted.write_text(NOT_LOADED, encoding="utf-8")
        install = "pip", "install", "--quiet", "--python", str(python), "--override", str(unwanted)
        uv(*install, "--editable", str(ROOT), *row.requirements()).check_returncode()
        tests = "pytest", "-q", "-p", "no:cacheprovider", "-m", MARKED[row.selection], f"--junitxml={report}"
        subprocess.run([python, "-m", *tests, *files(row.selection)], cwd=ROOT, stdout=sys.stderr)
        versions = [version(python, name) for name in SHOWN]
        release = asked(python, "import platform; print(platform.python_version())")
        cells = [f"`{row.name}`", release, *versions, counts(report), str(datetime.date.today())]
    return f"| {' | '.join(cells)} |"


def uv(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A call of uv, which finds pyenv's interpreters too."""
    known = sorted((Path.home() / ".pyenv" / "versions").glob("*/bin"))
    path = os.pathsep.join([*map(str, known), os.environ.get("PATH", "")])
    found = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), path]))
    if found is None:
        sys.exit("versions_table: needs uv: pip install uv")
    return subprocess.run([found, *arguments], env={**os.environ, "PATH": path}, text=True)


def files(selection: str) -> list[str]:
    """The files of a selection: of lint's, those that hold it against PyTorch itself are left out."""
    found = {path for pattern in SELECTIONS[selection] for path in ROOT.glob(pattern)}
    if selection == "lint":
        found = {path for path in found if not imports_torch(path)}
    return sorted(str(path.relative_to(ROOT)) for path in found)


def imports_torch(path: Path) -> bool:
    """Whether a file of tests imports PyTorch itself, where the loops in its strings only do so in the text."""
    statements = ast.parse(path.read_text(encoding="utf-8")).body
    return any(isinstance(s, ast.Import) and any(a.name == "torch" for a in s.names) for s in statements)


def asked(python: Path, code: str) -> str:
    """What ``python`` prints when it runs ``code``."""
    return subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def version(python: Path, name: str) -> str:
    """Which version of a distribution there is, a dash where there is none."""
    code = f"import importlib.metadata as m; print(next((d.version for d in m.distributions(name={name!r})), '-'))"
    return asked(python, code).partition("+")[0]


def counts(report: Path) -> str:
    """How a run ended, and what failed by name."""
    cases = [case for case in ElementTree.parse(report).iter("testcase")]
    kinds = {kind: [c for c in cases if c.find(kind) is not None] for kind in ("failure", "error", "skipped")}
    said = [f"{len(cases) - sum(map(len, kinds.values()))} passed"]
    words = {"failure": "failed", "error": "broken", "skipped": "skipped"}
    said += [f"{len(kinds[kind])} {word}" for kind, word in words.items() if kinds[kind]]
    names = [f"`{case.get('name')}`" for kind in ("failure", "error") for case in kinds[kind]]
    return ", ".join(said) + (f": {', '.join(names)}" if names else "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a selection of the suite on other versions, and note the result.")
    names = {row.name: row for row in ROWS}
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(names)}; all where none is named")
    given = parser.parse_args()
    unknown = [name for name in given.rows if name not in names]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}")
    known = known_lines()
    for name in given.rows or names:
        line = measured(names[name])
        if line:
            known[name] = line
        write({name: known[name] for name in names if name in known})


def known_lines() -> dict[str, str]:
    """The lines of the page, by their rows."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return {match[1]: match[0] for match in re.finditer(r"^\| `([^`]+)` \|.*$", text, re.MULTILINE)}


def write(lines: dict[str, str]) -> None:
    """The page, with these lines and the names of the rows that have none."""
    head = ["| run | Python | " + " | ".join(SHOWN) + " | result | date |", "| --- |" + " --- |" * (len(SHOWN) + 3)]
    missing = [f"`{row.name}`" for row in ROWS if row.name not in lines]
    text = NOTES.read_text(encoding="utf-8").replace("{table}", "\n".join([*head, *lines.values()]))
    PAGE.write_text(text.replace("{missing}", ", ".join(missing) or "nothing"), encoding="utf-8")


if __name__ == "__main__":
    main()
