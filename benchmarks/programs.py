"""The training programs that this repository holds, as text: what the benchmarks mutate, score and compare."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

from loop_pages import loops_of, marked_errors, written_loops  # noqa: E402

__all__ = ["ROOT", "marked_errors", "peers", "programs", "written_loops"]


def peers() -> dict[str, str]:
    """The loops that other tools were tried on, which are scripts, by their names."""
    return loops_of(Path(__file__).with_name("peers.md"))


def programs(*folders: str) -> list[str]:
    """The loops of ``tests/loops``, and the scripts of these folders."""
    scripts = [path for folder in folders for path in sorted((ROOT / folder).glob("*.py"))]
    return [*written_loops().values(), *(path.read_text(encoding="utf-8") for path in scripts)]
