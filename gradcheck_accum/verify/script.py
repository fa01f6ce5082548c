"""Verifying a script: starts it under observation in a child process, and reads the result. Never imports torch."""

from __future__ import annotations

import ast
import pickle
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from gradcheck_accum.notebooks import SUFFIX as NOTEBOOK
from gradcheck_accum.source_text import NotText, text_of
from gradcheck_accum.verdict import VerifyResult
from gradcheck_accum.verify.launch import Launch, LaunchError, origin

if TYPE_CHECKING:
    from gradcheck_accum.run_options import MemoryBudget
    from gradcheck_accum.verify.companion import Companion

# The working directory is not on the path until PyTorch is loaded: a `random.py` there must not break it. The package
# must be found from any of them, and its parent must shadow no module of the script's: it is on the path just for that.
_CHILD = (
    "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv[3]]; "
    "from gradcheck_accum.verify.child import main; sys.path.pop(); main()"
)

_BEAT = 0.5
_AFTER_ANOTHER = 5.0
"""Seconds between two looks at the other ranks, and those that a rank gets to end when another has failed."""

STOPPED = "stopped before the script's end: this is what was seen until then"
"""The note on a run that somebody, or its time limit, has stopped."""

_GRACE = 10.0
"""Seconds that a script gets to write what was seen after its time is up."""


def verify_script(
    script: str | None,
    arguments: Sequence[str] = (),
    *,
    module: str | None = None,
    max_windows: int | None = None,
    reference: str | None = None,
    memory_budget: MemoryBudget | None = None,
    dtype: str | None = None,
    device: str | None = None,
    timeout: float | None = None,
    loss_coefficient: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    trajectory: bool = False,
    companion: Callable[[], Companion] | None = None,
) -> VerifyResult:
    """Run a script (or a module, as ``python -m`` does), unmodified, and compare every step with the large batch.

    The script's output goes to this process's standard error. ``timeout`` is in seconds. ``reference``,
    ``memory_budget`` and the rest are those of `gradcheck_accum.verify.session.observe`. What
    ``companion`` makes, in the process of the run, goes along with it. What goes wrong with the
    script is the result's ``error``; nothing is raised for it.
    """
    name = script or module or ""
    problem = _unreadable(script) if script is not None else ""
    if problem:
        return VerifyResult.failed(name, problem)
    try:
        launch = Launch.from_environment()
        if launch is not None:
            launch.enter()
    except LaunchError as error:
        return VerifyResult.failed(name, str(error))
    if launch is not None and trajectory:
        return VerifyResult.failed(name, "--trajectory follows one process, and this is one of several ranks")
    options = {
        "reference": reference,
        "memory_budget": memory_budget,
        "max_windows": max_windows,
        "dtype": dtype,
        "device": device,
        "loss_coefficient": loss_coefficient,
        "rtol": rtol,
        "atol": atol,
        "trajectory": trajectory,
    }
    request = {
        "script": script,
        "module": module,
        "arguments": list(arguments),
        "options": options,
        "launch": launch,
        "companion": companion,
    }
    with tempfile.TemporaryDirectory(prefix="gradcheck-accum-") as folder:
        asked, answer = Path(folder) / "request", Path(folder) / "answer"
        asked.write_bytes(pickle.dumps(request))
        with _ended_politely(launch):
            status, why = _run(asked, answer, timeout, launch)
        late = why is _Stopped.LATE
        if not answer.exists():
            ending = f"the script did not end within {timeout:g} s" if late else _ending(status)
            return VerifyResult.failed(name, ending if launch is None else _ending_of_rank(launch, ending, why))
        result: VerifyResult = pickle.loads(answer.read_bytes())
    if launch is not None and launch.rank == 0:
        launch.leave()
    if late and not result.windows:
        return VerifyResult.failed(name, f"the script did not end within {timeout:g} s, and no step was seen")
    return result


class _Stopped(Enum):
    """Why a child was stopped before its own end: its time ran out, somebody asked for it, another rank had failed."""

    LATE = "late"
    ASKED = "asked"
    ALONE = "alone"


def _run(asked: Path, answer: Path, timeout: float | None, launch: Launch | None) -> tuple[int, _Stopped | None]:
    """Run the child to its end: its exit status, and why it was stopped if it was."""
    package = str(Path(__file__).resolve().parents[2])
    warnings_asked_for = [f"-W{option}" for option in sys.warnoptions]
    command = [sys.executable, *warnings_asked_for, "-c", _CHILD, str(asked), str(answer), package]
    child = subprocess.Popen(command, stdout=_standard_error())
    stopped = _Stopped.LATE
    try:
        ended = child.wait(timeout) if launch is None else _wait_beside(child, timeout, launch)
        if not isinstance(ended, _Stopped):
            return ended, None
        stopped = ended
        child.terminate()
    except subprocess.TimeoutExpired:
        child.terminate()
    except KeyboardInterrupt:
        stopped = _Stopped.ASKED
        child.send_signal(signal.SIGINT)
    try:
        return child.wait(_GRACE), stopped
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait(), stopped


def _wait_beside(child: subprocess.Popen[bytes], timeout: float | None, launch: Launch) -> int | _Stopped:
    """Wait for one rank's child: its exit status, or why it should be stopped.

    Most scripts fail with the rank that they are waiting for; what still waits after some seconds never ends by itself.
    """
    start, others_failed = time.monotonic(), 0.0
    while True:
        try:
            return child.wait(_BEAT)
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        if timeout is not None and now - start > timeout:
            return _Stopped.LATE
        launch.beat()
        if any(rank != launch.rank for rank in launch.failures()):
            others_failed = others_failed or now
            if now - others_failed > _AFTER_ANOTHER:
                return _Stopped.ALONE


@contextmanager
def _ended_politely(launch: Launch | None) -> Iterator[None]:
    """While it is entered, a launcher that ends this rank (SIGTERM) interrupts it, so that it can still report."""
    if launch is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ending_of_rank(launch: Launch, ending: str, stopped: _Stopped | None) -> str:
    """Tell the other ranks how this one ended without an account; how the first of all ranks failed."""
    launch.fail(ending, cut_off=stopped is _Stopped.ALONE)
    if launch.orphaned():
        return launch.orphaned()
    failures = launch.failures()
    first = origin(failures)
    if launch.rank == 0:
        launch.leave()
    return ending if first is None else f"rank {first}: {failures[first].message}"


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
        if script.endswith(NOTEBOOK):
            return (
                "is a notebook, not a script: call gradcheck_accum.check() or watch() in one of its cells, or make a "
                f"script of it (jupyter nbconvert --to script {shlex.quote(script)})"
            )
        if not path.is_file():
            return "is no regular file, and can be read only once: save the script first"
        source = path.read_bytes()
    except OSError as error:
        return error.strerror or "cannot be read"
    except ValueError as error:
        return str(error)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text_of(source))
    except NotText as error:
        return str(error)
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


__all__ = ["STOPPED", "verify_script"]
