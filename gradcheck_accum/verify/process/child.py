"""Runs a user's script under observation, in a process of its own.

The parent passes its request in a file and reads the result from another, both of which hold only data; the script's
output, exit code and files are not affected. The process ends as Python does: the result is written when the script and
its threads have ended, and before its exit handlers run.
"""

from __future__ import annotations

import builtins
import importlib
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from atexit import register as at_exit  # a script may put its own in its place
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from gradcheck_accum.errors import wants_tracebacks
from gradcheck_accum.portable import NotPortable
from gradcheck_accum.results.stopped import INTERRUPTED, STOPPED, stopped_early
from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.verify.process.parent import request_of
from gradcheck_accum.verify.process.result_file import leave
from gradcheck_accum.verify.ranks.launch import Launch

if TYPE_CHECKING:
    from gradcheck_accum.verify.session import Observation

_PACKAGE = Path(__file__).resolve().parents[2]
_CALLS_FOR_THE_SCRIPT = {"child.py", "patches.py", "session.py", "tape.py", "in_program.py"}
"""Our files whose frames are between the script and what it calls, in PyTorch or in this package."""

_PATIENCE = 5.0
"""Seconds that threads get to end by themselves after the script was stopped, which might have ended them."""

_INTERRUPTED_STATUS = 128 + signal.SIGINT


def main(*companions: type[Any]) -> None:
    """Run the request in the file named by the first argument; write the result to the second.

    ``companions`` are the classes that it has instances of.

    Returns if the script ended normally, and raises SystemExit if it ended in another way.
    """
    request: dict[str, Any] = request_of(*companions).loads(Path(sys.argv[1]).read_bytes())
    load()
    from gradcheck_accum.verify.stack import frames

    run = _Run(request, Path(sys.argv[2]))
    script, module = request["script"], request["module"]
    sys.argv = [script or module, *request["arguments"]]
    sys.path.insert(0, os.getcwd() if module else str(Path(script).resolve().parent))
    if not run.begin():
        return
    if script:
        frames.show_as(_absolute(script), script)
    run.until_the_end()


def load() -> None:
    """Import PyTorch and what watches a run.

    Before the script's folder is on the path: a user's `random.py` there must not break PyTorch. What reports the
    result is imported now too, and not when the script has ended: then imports may no longer work.
    """
    importlib.import_module("torch")
    importlib.import_module("gradcheck_accum.verify.session")
    importlib.import_module("gradcheck_accum.verify.ranks.gathering")


class _Run:
    """One run of a script: its observation, and the result that is written when it has ended."""

    def __init__(self, request: dict[str, Any], answer: Path) -> None:
        self._script, self._module = request["script"], request["module"]
        self._launch = None if request["launch"] is None else Launch.at(request["launch"])
        self._options = request["options"]
        self._companion = request["companion"]
        self._name: str = self._script or self._module
        self._answer = answer
        self._process = os.getpid()
        self._watching = ExitStack()
        # The last of all exit handlers: whatever happens, what was seen is reported.
        at_exit(self.give)
        self._observation: Observation | None = None
        self._finished = False
        self._error = ""
        self._cut_off = False

    def begin(self) -> bool:
        """Begin to watch; False where an option is invalid, and the script must not run."""
        from gradcheck_accum.verify.session import observe

        progress = _Progress(sys.stderr) if self._launch is None or self._launch.rank == 0 else None
        try:
            companion = None if self._companion is None else self._companion()
            observed = observe(script=self._name, on_step=progress, companion=companion, **self._options)
            self._observation = self._watching.enter_context(observed)
        except ValueError as problem:
            self._write(VerifyResult.failed(self._name, str(problem)))
            return False
        return True

    def until_the_end(self) -> None:
        """Run the script; what it raises is shown as Python shows it, and ends the process as Python ends it."""
        from gradcheck_accum.verify.watching.steps import SeenEnough

        problem: BaseException | None = None
        try:
            self._heed_who_asks_for_its_end()
            _run_as_main(self._script, self._module)
        except BaseException as raised:
            problem = raised
        # From here on no exception is being handled, as none is where Python shows what a program has raised.
        match problem:
            case None:
                self._finished = True
                self._give_when_threads_have_ended()
            case SystemExit():
                self._finished = problem.code in (None, 0)
                self._error = "" if self._finished else f"the script ended with exit status {_status(problem.code)}"
                self._give_when_threads_have_ended()
                raise SystemExit(problem.code)
            case SeenEnough():
                _heed_interrupts()
                self._stop()
            case KeyboardInterrupt():
                self._interrupted(problem)
            case _:
                self._failed(problem)

    def _heed_who_asks_for_its_end(self) -> None:
        """Let SIGTERM and SIGINT from outside (a time limit) still leave a report of what was seen.

        Before this there was nothing to report, and a signal ended the process silently.
        """
        signal.signal(signal.SIGTERM, self.interrupt)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _end_children_as_without(self.interrupt)

    def interrupt(self, signum: int, frame: Any) -> None:
        """Stop the script on a signal."""
        self._error, self._finished = INTERRUPTED, False
        raise KeyboardInterrupt

    def give(self) -> None:
        """Write the result, once; from here on nothing is watched any more."""
        observation, self._observation = self._observation, None
        if observation is None or os.getpid() != self._process:
            # A child that the script forked reached the script's end: only its parent writes the result.
            return
        with _undisturbed(self.interrupt):
            self._watching.close()
            observation.complete = self._finished
            result = self._result(observation)
            if result is not None:
                self._write(result)

    def _give_when_threads_have_ended(self) -> None:
        # Exit handlers run after all non-daemon threads have ended, and the last registered runs first.
        at_exit(self.give)

    def _interrupted(self, problem: KeyboardInterrupt) -> None:
        with _undisturbed(self.interrupt):
            was_asked, self._error = self._error == INTERRUPTED, INTERRUPTED
            if os.getpid() != self._process or (not was_asked and sys.excepthook is not sys.__excepthook__):
                _show(problem)
            self._stop()
        raise SystemExit(_INTERRUPTED_STATUS)

    def _stop(self) -> None:
        """The script was stopped before its end: write the result now, and do not wait for its threads forever."""
        self.give()
        if os.getpid() == self._process:
            waiting = threading.Timer(_PATIENCE, _wait_no_longer)
            waiting.daemon = True
            waiting.start()

    def _failed(self, problem: BaseException) -> None:
        from gradcheck_accum.verify.ranks.gathering import lost_connection

        self._error = _describe(problem)
        self._cut_off = lost_connection(problem)
        self._give_when_threads_have_ended()
        if not _is_ours(problem.__traceback__):
            status = _show(problem)
        else:
            status = 1
            if wants_tracebacks():
                traceback.print_exception(problem)
        raise SystemExit(status)

    def _result(self, observation: Observation) -> VerifyResult | None:
        from gradcheck_accum.verify.ranks.gathering import report_of_rank

        try:
            if self._launch is not None:
                return report_of_rank(self._launch, observation, self._name, self._error, cut_off=self._cut_off)
            result = observation.result()
        except Exception as problem:
            if wants_tracebacks():
                traceback.print_exception(problem)
            if self._launch is not None:
                self._launch.fail(_own(problem))
            return VerifyResult.failed(self._name, _own(problem))
        if self._error == INTERRUPTED:
            return stopped_early(result, STOPPED)
        return replace(result, error=self._error) if self._error else result

    def _write(self, result: VerifyResult) -> None:
        with suppress(OSError):  # a script may have deleted the folder for it
            leave(result, self._answer)


def _run_as_main(script: str | None, module: str | None) -> None:
    """Run a script, or a module, as the program itself, in a ``__main__`` that stays to the process's end."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    if script is None:
        # What `python -m` calls.
        runpy._run_module_as_main(module)  # type: ignore[attr-defined]
        return
    path = _absolute(script)
    loader = SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __cached__=None, __builtins__=builtins, __loader__=loader)
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), vars(main))


def _absolute(script: str) -> str:
    """The path of a script as Python itself sets it in ``__file__``."""
    return script if os.path.isabs(script) else os.path.join(os.getcwd(), script.removeprefix("./"))


def _status(code: object) -> object:
    """The exit status that a process has for an exit code: 1 for a message, which goes to standard error."""
    if isinstance(code, int):
        return code
    message = _words(code).partition("\n")[0]
    return f"1 ({message})" if message else 1


def _words(value: object) -> str:
    """A value as text; empty if its class fails to convert it."""
    try:
        return str(value).strip()
    except Exception:
        return ""


def _show(problem: BaseException) -> object:
    """Show what a script raised as Python shows it, through the script's own hook if it has one; the exit status."""
    from gradcheck_accum.verify.stack.without_us import clean

    problem = clean(problem)
    kind, tb = type(problem), problem.__traceback__
    sys.last_type, sys.last_value, sys.last_traceback = kind, problem, tb
    if sys.version_info >= (3, 12):
        sys.last_exc = problem
    try:
        sys.excepthook(kind, problem, tb)
        return 1
    except SystemExit as end:
        return end.code
    except BaseException as raised:
        second = clean(raised)
    print("Error in sys.excepthook:", file=sys.stderr)
    sys.__excepthook__(type(second), second, second.__traceback__)
    print("\nOriginal exception was:", file=sys.stderr)
    sys.__excepthook__(kind, problem, tb)
    return 1


def _end_children_as_without(handler: Any) -> None:
    """Let SIGTERM immediately end the processes that the script forks, as it does without our ``handler``.

    The signal is blocked during a fork: Python drops a signal that reaches a new process before handlers can run.
    """
    if not hasattr(os, "register_at_fork"):
        return
    before = threading.local()

    def hold() -> None:
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def let_go() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def let_go_in_child() -> None:
        if signal.getsignal(signal.SIGTERM) == handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        let_go()

    os.register_at_fork(before=hold, after_in_parent=let_go, after_in_child=let_go_in_child)


@contextmanager
def _undisturbed(ours: Any) -> Iterator[None]:
    """Ignore SIGTERM and SIGINT in the block: they would only interrupt the report.

    Afterwards the script's own handlers are restored, and the system's in place of ``ours``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            if handler is not None:
                signal.signal(each, signal.SIG_DFL if handler == ours else handler)


def _heed_interrupts() -> None:
    """Let SIGINT interrupt the main thread's waiting although the process was started to ignore it.

    A shell starts background jobs this way; after the script was stopped this is no longer needed.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _wait_no_longer() -> None:
    """Let the process go on to its exit handlers if it still waits for threads."""
    if not any(not t.daemon and t is not threading.main_thread() for t in threading.enumerate()):
        return
    hook = sys.unraisablehook

    def silent(unraisable: Any) -> None:
        # We interrupted the waiting, so this exception is not the script's.
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            sys.unraisablehook = hook
        else:
            hook(unraisable)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        # The script's own handler would let it keep waiting.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    sys.unraisablehook = silent
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


class _Progress:
    """Prints a line on a terminal from time to time to show that a long run is still watched."""

    EVERY = 10.0
    """Seconds between two lines, and before the first."""

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


def _describe(problem: BaseException) -> str:
    """The script's own exception in one line, with the place in the script where it came from."""
    if isinstance(problem, NotPortable):
        return str(problem)
    if _is_ours(problem.__traceback__):
        return _own(problem)
    message = _in_a_line(problem)
    if isinstance(problem, SyntaxError) and problem.filename:
        return f"the script is not Python: {problem.msg} ({_shown(problem.filename)}:{problem.lineno})"
    return f"the script raised {message}{_place(problem.__traceback__)}"


def _in_a_line(problem: BaseException) -> str:
    text = _words(problem).splitlines()
    return f"{type(problem).__name__}: {text[0]}" if text else type(problem).__name__


def _is_ours(tb: TracebackType | None) -> bool:
    """Whether an exception was raised by our own code, and not by what it called on the script's behalf."""
    raised_in = Path(traceback.extract_tb(tb)[-1].filename) if tb is not None else Path()
    return _PACKAGE in raised_in.parents and raised_in.name not in _CALLS_FOR_THE_SCRIPT


def _own(problem: BaseException) -> str:
    """An exception of our own in one line, with the place where it was raised, for the bug report."""
    last = traceback.extract_tb(problem.__traceback__)[-1]
    return f"internal error of gradcheck-accum, please report it: {_in_a_line(problem)} ({last.filename}:{last.lineno})"


def _place(tb: TracebackType | None) -> str:
    script = getattr(sys.modules["__main__"], "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(tb) if frame.filename == script]
    return f" ({_shown(script)}:{lines[-1]})" if script and lines else ""


def _shown(path: str) -> str:
    from gradcheck_accum.verify.stack.frames import shown

    return shown(path)
