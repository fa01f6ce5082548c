"""Verifying a script: starts it under observation in a child process, and reads the result. Never imports torch."""

from __future__ import annotations

import ast
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from gradcheck_accum.verdict import VerifyResult

# The working directory is not on the path until PyTorch is loaded: a `random.py` there must not break it.
_CHILD = "import sys; sys.path[:] = filter(None, sys.path); from gradcheck_accum.verify.child import main; main()"

_GRACE = 10.0
"""Seconds that a script gets to write what was seen after its time is up."""


def verify_script(
    script: str | None,
    arguments: Sequence[str] = (),
    *,
    module: str | None = None,
    max_windows: int | None = None,
    reference: str = "both",
    dtype: str | None = None,
    device: str | None = None,
    timeout: float | None = None,
    loss_coefficient: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    trajectory: bool = False,
) -> VerifyResult:
    """Run a script (or a module, as ``python -m`` does), unmodified, and compare every step with the large batch.

    The script's output goes to this process's standard error. ``timeout`` is in seconds. What goes wrong with the
    script is the result's ``error``; nothing is raised for it.
    """
    name = script or module or ""
    problem = _unreadable(script) if script is not None else ""
    if problem:
        return VerifyResult.failed(name, problem)
    options = {
        "reference": reference,
        "max_windows": max_windows,
        "dtype": dtype,
        "device": device,
        "loss_coefficient": loss_coefficient,
        "rtol": rtol,
        "atol": atol,
        "trajectory": trajectory,
    }
    request = {"script": script, "module": module, "arguments": list(arguments), "options": options}
    with tempfile.TemporaryDirectory(prefix="gradcheck-accum-") as folder:
        asked, answer = Path(folder) / "request", Path(folder) / "answer"
        asked.write_bytes(pickle.dumps(request))
        status, late = _run(asked, answer, timeout)
        if not answer.exists():
            if late:
                return VerifyResult.failed(name, f"the script did not end within {timeout:g} s")
            return VerifyResult.failed(name, _ending(status))
        result: VerifyResult = pickle.loads(answer.read_bytes())
    if late and not result.windows:
        return VerifyResult.failed(name, f"the script did not end within {timeout:g} s, and no step was seen")
    return result


def _run(asked: Path, answer: Path, timeout: float | None) -> tuple[int, bool]:
    """Run the child to its end: its exit status, and whether its time ran out."""
    command = [sys.executable, "-c", _CHILD, str(asked), str(answer)]
    # The package must be found from any working directory, without its parent shadowing the script's own modules.
    environment = dict(os.environ)
    package = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH", ""), package]))
    child = subprocess.Popen(command, stdout=_standard_error(), env=environment)
    try:
        return child.wait(timeout), False
    except subprocess.TimeoutExpired:
        child.terminate()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGINT)
    try:
        return child.wait(_GRACE), True
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait(), True


def _standard_error() -> int:
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        # A notebook or a test has put something else in its place.
        return 2


def _unreadable(script: str) -> str:
    """Why a script can not be run, or nothing."""
    path = Path(script)
    try:
        if path.is_dir():
            return "is a directory, not a script"
        if not path.exists():
            return "no such file"
        source = path.read_bytes()
    except OSError as error:
        return error.strerror or "cannot be read"
    except ValueError as error:
        return str(error)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte {error.start})"
    except SyntaxError as error:
        return f"not Python: {error.msg} (line {error.lineno})"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"not Python: {error}"
    return ""


def _ending(status: int) -> str:
    if status < 0:
        try:
            return f"the script was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"the script was killed by signal {-status}"
    return f"the script ended its process by itself (exit status {status}) before a verdict could be given"


__all__ = ["verify_script"]
