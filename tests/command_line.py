"""The command line, run in the test's own process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradcheck_accum.cli import main


class CommandLine:
    """Runs commands, and keeps what the last one said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        status = main(arguments)
        self.out, self.err = self._capsys.readouterr()
        return status

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Folder(CommandLine):
    """A command line in a directory, and files that are written there: with ``usual`` text unless given another."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str], usual: str) -> None:
        super().__init__(capsys)
        self.root = root
        self._usual = usual

    def write(self, path: str, content: str | bytes | None = None) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        content = self._usual if content is None else content
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file
