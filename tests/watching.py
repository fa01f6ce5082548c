"""Runs scripts under observation in the test's own process."""

from __future__ import annotations

import contextlib
import io
import runpy
from pathlib import Path
from typing import Any

from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.verify import observe


def watch_script(path: Path, **options: Any) -> VerifyResult:
    """The result of running a script file; what it prints is thrown away."""
    with contextlib.redirect_stdout(io.StringIO()), observe(script=str(path), **options) as observation:
        names = runpy.run_path(str(path), run_name="__main__")
    result = observation.result()
    # A process group that goes while its threads still let go of their last work waits for them with Python's lock.
    names.clear()
    return result


def watch_source(source: str, folder: Path, **options: Any) -> VerifyResult:
    """The result of running a script given as text."""
    path = folder / "train.py"
    path.write_text(source, encoding="utf-8")
    return watch_script(path, **options)


def found(result: VerifyResult) -> set[tuple[int, str]]:
    """The (line, rule name) pairs of a result's diagnosis."""
    return {(d.where.line, d.mistake.name) for d in result.diagnosis}
