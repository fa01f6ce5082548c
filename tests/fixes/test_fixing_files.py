"""--fix, --unsafe-fixes and --diff: what is written, what is only shown, and what is reported."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from plain_loops import plain_loop

from gradcheck_accum.cli import main
from gradcheck_accum.lint import lint_source
from gradcheck_accum.lint.fixes import files

SAFE = plain_loop("K", flush=True)
UNSAFE = SAFE.replace(" or i + 1 == len(loader)", "").replace("y)\n", "y) / K\n")
HOPELESS = """\
def train(model, loader, optimizer, criterion, K):
    pending = 0
    for x, y in loader:
        criterion(model(x), y).backward()
        pending += 1
        if pending == K:
            optimizer.step()
            optimizer.zero_grad()
            pending = 0
    if pending:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SAFE)
    return path


def findings(path: Path) -> list[str]:
    return [f.mistake.code for f in lint_source(path.read_bytes(), str(path))]


def test_fix_repairs_the_file_and_exits_with_0(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--fix", "train.py"]) == 0
    assert findings(script) == []
    assert capsys.readouterr().out == "Fixed 1 mistake in 1 file.\nNo mistakes found in 1 file.\n"
    assert os.listdir(script.parent) == ["train.py"]


def test_what_remains_is_reported_and_exits_with_1(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (script.parent / "b.py").write_text(UNSAFE)
    (script.parent / "c.py").write_text(HOPELESS)
    assert main(["lint", "--fix", "."]) == 1
    out = capsys.readouterr().out
    assert out.endswith(
        "Fixed 1 mistake in 1 file.\nFound 2 mistakes in 2 files.\n1 fixable with --fix --unsafe-fixes.\n"
    )
    assert "b.py:6:13: GA301" in out
    assert "c.py:4:9: GA101" in out
    assert (script.parent / "b.py").read_text() == UNSAFE
    assert main(["lint", "--fix", "--unsafe-fixes", "."]) == 1
    assert findings(script.parent / "b.py") == []
    assert (script.parent / "c.py").read_text() == HOPELESS


def test_without_fix_nothing_is_written_and_the_fixable_are_counted(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (script.parent / "b.py").write_text(UNSAFE)
    assert main(["lint", "--unsafe-fixes", "."]) == 1
    out = capsys.readouterr().out
    assert out.endswith("Found 2 mistakes in 2 files.\n1 fixable with --fix, 1 more with --unsafe-fixes.\n")
    assert "fix: Divide the loss by the window's own number of micro-batches\n" in out
    assert "(unsafe)\n" in out
    assert script.read_text() == SAFE


def test_json_gives_every_finding_its_fix(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (script.parent / "c.py").write_text(HOPELESS)
    assert main(["lint", "--output-format", "json", "."]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["summary"]["fixable"] == {"safe": 1, "unsafe": 0}
    assert result["summary"]["fixed"] == 0
    hopeless, fixable = result["findings"]
    assert hopeless["fix"] is None
    assert fixable["fix"]["applicability"] == "safe"
    assert fixable["fix"]["message"] == "Divide the loss by the window's own number of micro-batches"
    lines = SAFE.splitlines(keepends=True)
    for edit in reversed(fixable["fix"]["edits"]):
        lines[edit["line"] - 1 : edit["end_line"] - 1] = [edit["content"]]
    script.write_text("".join(lines))
    assert findings(script) == []
    assert main(["lint", "--output-format", "json", "--fix", "train.py"]) == 0
    script.write_text(SAFE)
    capsys.readouterr()
    assert main(["lint", "--output-format", "json", "--fix", "train.py"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["fixed"] == 1


def test_codes_that_are_not_selected_are_not_fixed(script: Path) -> None:
    assert main(["lint", "--fix", "--select", "GA2", "train.py"]) == 0
    assert main(["lint", "--fix", "--ignore", "GA101", "train.py"]) == 0
    assert script.read_text() == SAFE


@pytest.mark.parametrize("content", [SAFE, SAFE.rstrip(), "\ufeff" + SAFE, SAFE.replace("\n", "\r\n"), "# é\n" + SAFE])
def test_a_diff_says_what_fix_would_do_and_writes_nothing(
    script: Path, capsysbinary: pytest.CaptureFixture[bytes], content: str
) -> None:
    script.write_bytes(content.encode())
    assert main(["lint", "--diff", "train.py"]) == 1
    out, err = capsysbinary.readouterr()
    assert script.read_bytes() == content.encode()
    assert err == b"Would fix 1 mistake.\n"
    assert out.startswith(b"--- train.py\n+++ train.py\n@@ ")
    patched = script.parent / "patched.py"
    shutil.copy(script, patched)
    if shutil.which("patch"):
        subprocess.run(["patch", "--binary", "-s", "patched.py"], input=out, check=True, cwd=script.parent)
        assert main(["lint", "--fix", "train.py"]) == 0
        assert patched.read_bytes() == script.read_bytes()


def test_a_diff_of_nothing_is_empty_and_exits_with_0(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(UNSAFE)
    assert main(["lint", "--diff", "train.py"]) == 0
    assert capsys.readouterr() == ("", "Would fix 0 mistakes.\n")
    assert main(["lint", "--diff", "--unsafe-fixes", "train.py"]) == 1


def test_diff_wins_over_fix(script: Path) -> None:
    assert main(["lint", "--diff", "--fix", "train.py"]) == 1
    assert script.read_text() == SAFE


def test_a_fixed_file_keeps_its_mark_its_mode_and_its_line_ends(script: Path) -> None:
    script.write_bytes(b"\xef\xbb\xbf" + SAFE.replace("\n", "\r\n").encode())
    script.chmod(0o754)
    assert main(["lint", "--fix", "train.py"]) == 0
    fixed = script.read_bytes()
    assert fixed.startswith(b"\xef\xbb\xbfdef train")
    assert fixed.count(b"\r\n") == fixed.count(b"\n") == SAFE.count("\n") + 1
    assert script.stat().st_mode & 0o777 == 0o754


def test_what_a_link_points_to_is_written_and_the_link_stays(script: Path) -> None:
    (script.parent / "elsewhere").mkdir()
    target = script.parent / "elsewhere" / "real.py"
    script.rename(target)
    script.symlink_to(target)
    assert main(["lint", "--fix", "train.py"]) == 0
    assert script.is_symlink()
    assert findings(target) == []


def test_a_file_that_cannot_be_written_is_left_and_reported(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", fail)
    assert main(["lint", "--fix", "train.py"]) == 2
    out, err = capsys.readouterr()
    assert err == "gradcheck-accum: train.py: cannot be written: No space left on device\n"
    assert "GA101" in out
    assert "Fixed" not in out
    assert script.read_text() == SAFE
    assert os.listdir(script.parent) == ["train.py"]


def test_a_broken_file_among_them_is_left_alone(script: Path) -> None:
    broken = script.parent / "broken.py"
    broken.write_text("def f(:\n    loss.backward()\n    optimizer.step()\n")
    assert main(["lint", "--fix", "."]) == 2
    assert broken.read_text().startswith("def f(:\n")
    assert findings(script) == []


def test_standard_input_is_fixed_to_standard_output(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SAFE.encode())))
    assert main(["lint", "--fix", "-"]) == 0
    out, err = capsysbinary.readouterr()
    assert lint_source(out, "-") == []
    assert out.startswith(b"def train(")
    assert err == b"Fixed 1 mistake in 1 file.\nNo mistakes found in 1 file.\n"
