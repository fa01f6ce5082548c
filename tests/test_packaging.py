"""What a user who installs the wheel gets."""

from __future__ import annotations

import configparser
import email
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from plain_loops import plain_loop
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
    assert {f"gradcheck_accum/report/page/{name}" for name in ("page.html", "parts.html", "style.css")} <= names
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


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_no_link_of_the_readme_is_dead_on_an_index(wheel: Path) -> None:
    about = metadata(wheel)
    assert about["Description-Content-Type"] == "text/markdown"
    text = str(about.get_payload())
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []
    assert "a tutorial that begins with a wrong loop, the ledger in pictures" in text
    assert text.count("```") == (ROOT / "README.md").read_text(encoding="utf-8").count("```")
    for url in about.get_all("Project-URL", []):
        assert url.split(", ")[1].startswith("https://")


def needed(requirements: list[str], known: dict[str, Distribution]) -> dict[str, Distribution]:
    """The distributions that requirements without extras ask for, and those that these ask for."""
    for text in requirements:
        requirement = Requirement(text)
        if requirement.name not in known and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
            known[requirement.name] = found = distribution(requirement.name)
            needed(found.requires or [], known)
    return known


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The command in an environment that holds what a distribution of ours asks for and nothing else; no network."""
    if request.param == "sdist":
        wheel = from_sdist(tmp_path_factory.mktemp("sdist"))
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False, symlinks=True)
    (python,) = environment.glob("bin/python")
    (site,) = environment.glob("lib/python*/site-packages")
    for found in needed(metadata(wheel).get_all("Requires-Dist", []), {}).values():
        for top in {file.parts[0] for file in found.files or [] if ".." not in file.parts}:
            (site / top).symlink_to(Path(str(found.locate_file(top))))
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps", str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    yield environment / "bin" / "gradcheck-accum"


def from_sdist(out: Path) -> Path:
    """A wheel that is built from the unpacked sdist, as pip does it."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)]
    done = subprocess.run([*build, "--sdist", str(ROOT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = out.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        sources.extractall(out, filter="data")
    (unpacked,) = (path for path in out.iterdir() if path.is_dir())
    done = subprocess.run([*build, "--wheel", str(unpacked)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    return wheel


BAD = plain_loop(3, flush=True)


@pytest.mark.slow
def test_what_was_installed_into_an_empty_environment_works(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BAD)
    (tmp_path / "pyproject.toml").write_text('[tool.gradcheck-accum]\nextend-exclude = ["old/"]\n')

    def run(*arguments: str) -> tuple[int, str, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [str(installed), *arguments], cwd=tmp_path, capture_output=True, text=True, env=environment
        )
        return done.returncode, done.stdout, done.stderr

    assert run("--version") == (0, f"gradcheck-accum {__version__}\n", "")
    for form in ("text", "concise", "json", "sarif", "github", "junit"):
        status, out, err = run("lint", ".", "--output-format", form)
        assert (status, err) == (1, "")
        assert "GA101" in out
    assert run("lint", "train.py", "--fix")[0] == 0
    assert run("explain", "GA101")[1].startswith("missing-loss-scaling (GA101)\n")
    # What is named is what an index has: we may not be on any.
    missing = "needs torch, which is not installed here: pip install torch\n"
    assert run("verify", "train.py") == (2, "", f"gradcheck-accum: verify {missing}")
    assert run("fuzz") == (2, "", f"gradcheck-accum: fuzz {missing}")
    assert run("server") == (2, "", f"gradcheck-accum: server {missing.replace('torch', 'pygls')}")


def test_the_docs_list_every_mistake() -> None:
    listed = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    rows = []
    for mistake in CATALOGUE.values():
        lint = "where visible" if mistake.where_visible else "yes" if mistake.static else "no"
        seen_by = f"{lint} | {'yes' if mistake.dynamic else 'no'}"
        page = f"[{mistake.code}](../rules/{mistake.code}.md)"
        rows.append(f"| {page} | {mistake.name} | {mistake.summary} | {seen_by} |")
    assert [line for line in listed.splitlines() if line.startswith("| [")] == rows


def test_the_docs_list_every_shape_under_its_verdict() -> None:
    text = (ROOT / "docs" / "shapes.md").read_text(encoding="utf-8")
    _, right, coupled, undecided = text.split("\n## ")
    place = {"equivalent": right, "not-equivalent-by-construction": coupled, "inconclusive": undecided}
    for verdict, part in place.items():
        shapes = [shape for shape in SHAPES if shape.verdict == verdict]
        codes = [", ".join(sorted(set().union(*(codes for _, codes in shape.wrong)))) for shape in shapes]
        rows = [f"| {shape.says} | {listed} |" for shape, listed in zip(shapes, codes, strict=True)]
        # By subject there, and by the way that they are written in the table of shapes.
        assert sorted([line for line in part.splitlines() if line.startswith("| ")][2:]) == sorted(rows)
