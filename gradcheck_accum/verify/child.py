"""Runs a user's script under observation, in a process of its own.

The parent gives its request as a pickle in a file and reads the result from another; the script's own output, exit
code and files are its own.
"""

from __future__ import annotations

import os
import pickle
import runpy
import signal
import sys
import time
import traceback
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TextIO

from gradcheck_accum.verdict import VerifyResult

_PACKAGE = Path(__file__).resolve().parents[1]
_CALLS_FOR_THE_SCRIPT = {"child.py", "patches.py", "session.py", "tape.py", "watching.py"}
"""Our files that stand between the script and what it calls, in PyTorch or of ours."""


def main() -> None:
    """Carry out the request in the file that the first argument names; write the result to the second."""
    request: dict[str, Any] = pickle.loads(Path(sys.argv[1]).read_bytes())
    answer = Path(sys.argv[2])
    # Before the script's own folder is on the path: a user's `random.py` there must not break PyTorch.
    import torch  # noqa: F401

    from gradcheck_accum.verify.session import observe
    from gradcheck_accum.verify.together import INTERRUPTED, lost_connection, report_of_rank

    process = os.getpid()
    script, module, launch = request["script"], request["module"], request["launch"]
    progress = _Progress(sys.stderr) if launch is None or launch.rank == 0 else None
    sys.argv = [script or module, *request["arguments"]]
    sys.path.insert(0, os.getcwd() if module else str(Path(script).resolve().parent))
    # A polite end from outside (a time limit) still leaves a report of what was seen.
    signal.signal(signal.SIGTERM, _interrupt)
    error = ""
    finished = cut_off = False
    with ExitStack() as stack:
        try:
            observation = stack.enter_context(observe(script=script or module, on_step=progress, **request["options"]))
        except ValueError as problem:
            # An option that does not fit; nothing of the script has run.
            _give(answer, VerifyResult.failed(script or module, str(problem)))
        try:
            if module:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(script, run_name="__main__")
            finished = True
        except SystemExit as end:
            finished = end.code in (None, 0)
            error = "" if finished else f"the script ended with exit status {end.code}"
        except KeyboardInterrupt:
            error = INTERRUPTED
        except Exception as problem:
            error = _describe(problem, script or module)
            cut_off = lost_connection(problem)
    if os.getpid() != process:
        # A child that the script forked ran to the script's end: the result is its parent's to give.
        os._exit(0)
    # The script has ended: what asks for its end now would only break off the report.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    observation.complete = observation.complete and finished
    try:
        if launch is not None:
            _give(answer, report_of_rank(launch, observation, script or module, error, cut_off=cut_off))
        result: VerifyResult = observation.result()
    except Exception as problem:
        if launch is not None:
            launch.fail(_own(problem))
        _give(answer, VerifyResult.failed(script or module, _own(problem)))
    if error == INTERRUPTED:
        result = replace(
            result, notes=(*result.notes, "stopped before the script's end: this is what was seen until then")
        )
    elif error:
        result = replace(result, error=error)
    _give(answer, result)


class _Progress:
    """Says on a terminal, in a line of its own every now and then, that a long run is still watched."""

    EVERY = 10.0
    """Seconds between two lines: a run that is shorter needs none."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._enabled = stream.isatty()
        self._start = self._last = time.monotonic()

    def __call__(self, steps: int) -> None:
        now = time.monotonic()
        if self._enabled and now - self._last >= self.EVERY:
            self._last = now
            self._stream.write(f"gradcheck-accum: {steps} windows watched in {now - self._start:.0f} s\n")
            self._stream.flush()


def _give(answer: Path, result: VerifyResult) -> NoReturn:
    """Hand the result to the parent and end the process."""
    temporary = answer.with_suffix(".part")
    temporary.write_bytes(pickle.dumps(result))
    temporary.replace(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads and children that the script left behind must not keep its verdict waiting.
    os._exit(0)


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _describe(problem: BaseException, script: str) -> str:
    """The script's own exception in one line, with the place in the script where it came from."""
    if _is_ours(problem.__traceback__):
        return _own(problem)
    message = _in_a_line(problem)
    if isinstance(problem, SyntaxError) and problem.filename:
        return f"the script is not Python: {problem.msg} ({problem.filename}:{problem.lineno})"
    place = _place(problem.__traceback__, script)
    return f"the script raised {message}{place}"


def _in_a_line(problem: BaseException) -> str:
    text = str(problem).strip().splitlines()
    return f"{type(problem).__name__}: {text[0]}" if text else type(problem).__name__


def _is_ours(tb: TracebackType | None) -> bool:
    """Whether an exception was raised by our own code, and not by what it called on the script's behalf."""
    raised_in = Path(traceback.extract_tb(tb)[-1].filename) if tb is not None else Path()
    return _PACKAGE in raised_in.parents and raised_in.name not in _CALLS_FOR_THE_SCRIPT


def _own(problem: BaseException) -> str:
    """An exception of our own in one line, with the place that whoever mends it wants to know."""
    last = traceback.extract_tb(problem.__traceback__)[-1]
    return f"an error of gradcheck-accum's own, please report it: {_in_a_line(problem)} ({last.filename}:{last.lineno})"


def _place(tb: TracebackType | None, script: str) -> str:
    lines = [f.lineno for f in traceback.extract_tb(tb) if os.path.realpath(f.filename) == os.path.realpath(script)]
    return f" ({script}:{lines[-1]})" if lines else ""
