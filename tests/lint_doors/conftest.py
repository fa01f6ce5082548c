"""A project in a directory of its own, and the command line run in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Folder
from plain_loops import plain_loop

BAD = plain_loop(4, flush=True)
"""One mistake: GA101 at line 4."""


class Project(Folder):
    """Files below a directory that is the working directory, and what ``lint`` said of them last."""

    def settings(self, text: str) -> None:
        self.write("pyproject.toml", f"[tool.gradcheck-accum]\n{text}\n")

    def lint(self, *arguments: str) -> int:
        return self("lint", *arguments)

    def report(self, *arguments: str) -> Any:
        """The JSON report."""
        self.lint("--output-format", "json", *arguments)
        assert self.err == ""
        return self.json

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
    return Project(root, capsys, BAD)


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
