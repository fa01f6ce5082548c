"""A project in a directory of its own, and the command line run in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plain_loops import plain_loop

from gradcheck_accum.cli import main

BAD = plain_loop(4, flush=True)
"""One mistake: GA101 at line 4."""


class Project:
    """Files below a directory that is the working directory, and what ``lint`` said of them last."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capsys = capsys
        self.out = self.err = ""

    def write(self, path: str, content: str | bytes = BAD) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    def settings(self, text: str) -> None:
        self.write("pyproject.toml", f"[tool.gradcheck-accum]\n{text}\n")

    def lint(self, *arguments: str) -> int:
        status = main(["lint", *arguments])
        self.out, self.err = self._capsys.readouterr()
        return status

    def report(self, *arguments: str) -> Any:
        """The JSON report."""
        self.lint("--output-format", "json", *arguments)
        assert self.err == ""
        return json.loads(self.out)

    def found(self, *arguments: str) -> list[tuple[str, str]]:
        """Each finding as path and code."""
        return [(finding["path"], finding["code"]) for finding in self.report(*arguments)["findings"]]

    def paths(self, *arguments: str) -> list[str]:
        return [path for path, _ in self.found(*arguments)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Project:
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.chdir(root)
    return Project(root, capsys)


Cells = Callable[..., str]


@pytest.fixture
def notebook() -> Cells:
    """Makes notebooks: a cell is its Python source, or a pair of its kind and its text."""

    def make(*cells: str | tuple[str, str], **metadata: Any) -> str:
        made: list[dict[str, Any]] = []
        for cell in cells:
            kind, source = cell if isinstance(cell, tuple) else ("code", cell)
            extra = {"execution_count": None, "outputs": []} if kind == "code" else {}
            made.append({"cell_type": kind, "metadata": {}, **extra, "source": source.splitlines(keepends=True)})
        document = {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"

    return make
