"""Verifying a script: starts it under observation in a child process, and reads the result. Never imports torch."""

from __future__ import annotations

import ast
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradcheck_accum.portable import NotPortable, Portable
from gradcheck_accum.results.stopped import NOTHING_SEEN
from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.run_options import MemoryBudget
from gradcheck_accum.sources.decoding import NotText, text_of
from gradcheck_accum.sources.notebooks import SUFFIX as NOTEBOOK
from gradcheck_accum.verify.process.forked import Child, Copies
from gradcheck_accum.verify.process.result_file import read_result
from gradcheck_accum.verify.process.starting import start_apart, start_child
from gradcheck_accum.verify.ranks.launch import Launch, origin
from gradcheck_accum.verify.ranks.mailbox import LaunchError

if TYPE_CHECKING:
    from gradcheck_accum.verify.watching.companion import Companion

_BEAT = 0.5
_AFTER_ANOTHER = 5.0
"""Seconds between two checks of the other ranks, and those that a rank gets to end when another has failed."""

GRACE = 10.0
"""Seconds that the child gets to write what was seen after the time limit."""

_TOGETHER = 18.0
"""Seconds for the report on interrupted ranks; all together less than a launcher waits (``torchrun``: 30)."""
_UNHURRIED = 120.0
"""The same where only the script was interrupted, so that no launcher waits for it."""

HEEDED = 1.0
"""Seconds in which a child ends that was interrupted too: a terminal interrupts all processes started from it.

A second interrupt might abort its report.
"""


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
    environment: Mapping[str, str] | None = None,
    ending: Ending | None = None,
    copies: Copies | None = None,
) -> VerifyResult:
    """Run a script (or a module, as ``python -m`` does), unmodified, and compare every step with the large batch.

    The script's output goes to this process's standard error. ``timeout`` is in seconds. ``reference``,
    ``memory_budget`` and the rest are those of `gradcheck_accum.verify.session.observe`. ``companion`` makes an object,
    in the process of the run, that takes part in it; ``environment`` are variables that are added to those of this
    process, and ``ending`` lets another thread stop the run. ``copies`` are made of a process with the same variables
    and companions, instead of starting one. Problems with the script are the result's ``error``; nothing is raised for
    them.
    """
    name = script or module or ""
    variables = {**os.environ, **(environment or {})}
    problem = _unreadable(script) if script is not None else ""
    if problem:
        return VerifyResult.failed(name, problem)
    try:
        launch = Launch.from_environment(variables)
        if launch is not None:
            launch.enter()
    except LaunchError as error:
        return VerifyResult.failed(name, str(error))
    if launch is not None and trajectory:
        return VerifyResult.failed(name, "--trajectory supports a single process, and this is one of several ranks")
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
        "launch": None if launch is None else launch.address(),
        "companion": companion,
    }
    with tempfile.TemporaryDirectory(prefix="gradcheck-accum-") as folder:
        asked, answer = Path(folder) / "request", Path(folder) / "answer"
        classes = [] if companion is None else [type(companion)]
        asked.write_bytes(request_of(*classes).dumps(request))
        run = _ChildRun(asked, answer, classes, variables, ending or Ending(), copies)
        status, why = run.to_its_end(timeout, launch)
        late = why is _Stopped.LATE
        said = f"the script did not end within {timeout:g} s" if late else _ending(status)
        if launch is not None and launch.rank == 0 and not answer.exists() and launch.mailbox.has("account-0"):
            said = "the script was interrupted, and there was no time to make the report"
            run.report_of_interrupted_ranks()
        if not answer.exists():
            if why is _Stopped.ASKED:
                said = NOTHING_SEEN
            return VerifyResult.failed(name, said if launch is None else _ending_of_rank(launch, said, why))
        try:
            result = read_result(answer.read_bytes())
        except (OSError, NotPortable) as error:
            return VerifyResult.failed(name, f"the run's result cannot be read: {error}")
    if launch is not None and launch.rank == 0:
        launch.leave()
    if late and not result.windows:
        return VerifyResult.failed(name, f"the script did not end within {timeout:g} s, and no step was seen")
    return result


class _Stopped(Enum):
    """Why a child was stopped before its end: the time limit, a request, or another rank that failed."""

    LATE = "late"
    ASKED = "asked"
    ALONE = "alone"


def request_of(*companions: type[Any]) -> Portable:
    """Reads and writes the request to a child; ``companions`` are the classes of the companions of its run."""
    return Portable([MemoryBudget, *companions])


class Ending:
    """Stops a run from another thread than the one that waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None
        self.asked = False
        """Whether a stop was requested."""

    def begin(self, start: Callable[[], Child]) -> Child:
        """Start the run's process, and remember it."""
        child = start()
        with self._lock:
            self._child = child
            if self.asked:
                _ask_to_end(child)
            return child

    def ask(self) -> None:
        """Interrupt it, as Ctrl-C does: it still reports what was seen until then."""
        with self._lock:
            self.asked = True
            if self._child is not None:
                _ask_to_end(self._child)

    def kill(self) -> None:
        """Kill it."""
        with self._lock:
            if self._child is not None:
                self._child.kill()


@dataclass(frozen=True, slots=True)
class _ChildRun:
    """A process that runs the request in the file ``asked`` and writes its result to ``answer``."""

    asked: Path
    answer: Path
    classes: Sequence[type[Any]]
    variables: Mapping[str, str]
    ending: Ending
    copies: Copies | None

    def to_its_end(self, timeout: float | None, launch: Launch | None) -> tuple[int, _Stopped | None]:
        """Run it: its exit status, and why it was stopped if it was. It has ended even if this raises."""
        child = self.ending.begin(self._started)
        try:
            status, why = self._ended(child, timeout, launch)
        finally:
            child.kill()
            child.wait()
        return status, _Stopped.ASKED if self.ending.asked else why

    def report_of_interrupted_ranks(self) -> None:
        """Make the answer from the reports that all ranks have left; there is none if that fails."""
        apart = start_apart("interrupted_ranks", self._arguments, self.classes, self.variables)
        try:
            apart.wait(_TOGETHER if self.ending.asked else _UNHURRIED)
        except subprocess.TimeoutExpired:
            pass
        finally:
            apart.kill()
            apart.wait()

    def _started(self) -> Child:
        copy = None if self.copies is None else self.copies.copy(self._arguments)
        return copy or start_child(self._arguments, self.classes, self.variables)

    @property
    def _arguments(self) -> list[str]:
        return [str(self.asked), str(self.answer)]

    def _ended(self, child: Child, timeout: float | None, launch: Launch | None) -> tuple[int, _Stopped | None]:
        stopped = _Stopped.LATE
        try:
            ended = child.wait(timeout) if launch is None else _wait_with_launch(child, timeout, launch)
            if not isinstance(ended, _Stopped):
                return ended, None
            stopped = ended
            child.terminate()
        except subprocess.TimeoutExpired:
            child.terminate()
        except KeyboardInterrupt:
            self.ending.asked, stopped = True, _Stopped.ASKED
            try:
                return child.wait(HEEDED), stopped
            except subprocess.TimeoutExpired:
                _ask_to_end(child)
        try:
            return child.wait(GRACE), stopped
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait(), stopped


def _ask_to_end(child: Child) -> None:
    """Interrupt a child, as Ctrl-C does; a background job of a shell ignores that, and gets SIGTERM.

    The child still reports what was seen until then.
    """
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    child.send_signal(signal.SIGTERM if is_ignored else signal.SIGINT)


def _wait_with_launch(child: Child, timeout: float | None, launch: Launch) -> int | _Stopped:
    """Wait for one rank's child: its exit status, or why it should be stopped.

    Most scripts fail together with the rank that they wait for; one that still waits after some seconds will not end.
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


def _ending_of_rank(launch: Launch, ending: str, stopped: _Stopped | None) -> str:
    """Report to the other ranks how this one ended without a result; returns how the first of all ranks failed."""
    launch.fail(ending, cut_off=stopped is _Stopped.ALONE)
    if launch.orphaned():
        return launch.orphaned()
    failures = launch.failures()
    first = origin(failures)
    if launch.rank == 0:
        launch.leave()
    return ending if first is None else f"rank {first}: {failures[first].message}"


def _unreadable(script: str) -> str:
    """Why a script cannot be run, or an empty string."""
    path = Path(script)
    try:
        if path.is_dir():
            return "is a directory, not a script"
        if not path.exists():
            return "no such file"
        if script.endswith(NOTEBOOK):
            return (
                "is a notebook, not a script: call gradcheck_accum.check() or watch() in one of its cells, or convert "
                f"it to a script (jupyter nbconvert --to script {shlex.quote(script)})"
            )
        if not path.is_file():
            return "is not a regular file and can be read only once: save the script first"
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
    return f"the script terminated its process (exit status {status}) before a verdict could be given"


__all__ = ["GRACE", "HEEDED", "Ending", "verify_script"]
