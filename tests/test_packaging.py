"""What a user who installs the wheel gets."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from shapes_table import SHAPES

from gradcheck_accum import __version__
from gradcheck_accum.mistakes import CATALOGUE

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from this checkout, without a network."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} == {"gradcheck_accum", f"gradcheck_accum-{__version__}.dist-info"}
    assert "gradcheck_accum/py.typed" in names
    assert f"gradcheck_accum-{__version__}.dist-info/licenses/LICENSE" in names


def test_every_mistake_has_its_page_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        pages = [Path(name).name for name in archive.namelist() if name.startswith("gradcheck_accum/rules/")]
    missing = [code for code in CATALOGUE if not any(page.startswith(code) for page in pages)]
    assert missing == []


def test_entry_points(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        parser = configparser.ConfigParser()
        parser.read_string(archive.read(name).decode())
    assert dict(parser["console_scripts"]) == {"gradcheck-accum": "gradcheck_accum.__main__:main"}
    assert dict(parser["pytest11"]) == {"gradcheck_accum": "gradcheck_accum.pytest_plugin"}


def test_the_pages_are_found_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "import gradcheck_accum, sys; from gradcheck_accum.cli import main; print(gradcheck_accum.__file__);"
    code += "sys.exit(main(['explain', 'GA101']))"
    # -S keeps an editable install of this very checkout out of the way.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    first, rest = done.stdout.split("\n", 1)
    assert Path(first).is_relative_to(tmp_path)
    assert "missing-loss-scaling" in rest


def test_the_readme_lists_every_mistake() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for mistake in CATALOGUE.values():
        lint = "where visible" if mistake.where_visible else "yes" if mistake.static else "no"
        seen_by = f"{lint} | {'yes' if mistake.dynamic else 'no'}"
        row = f"| [{mistake.code}](rules/{mistake.code}.md) | {mistake.name} | {mistake.summary} | {seen_by} |"
        assert row in readme


def test_the_readme_lists_every_shape_under_its_verdict() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    start = readme.index("### What it judges")
    parts = readme[start : readme.index("### In your own program")].split("`inconclusive`, with the reason:")
    right, coupled = parts[0].split("`not-equivalent-by-construction`, though the loop is right:")
    place = {"equivalent": right, "not-equivalent-by-construction": coupled, "inconclusive": parts[1]}
    assert [shape.name for shape in SHAPES if shape.says not in place[shape.verdict]] == []
