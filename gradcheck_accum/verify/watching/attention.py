"""Whether an operation in PyTorch belongs to the watched loop, or to our own work."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from torch.overrides import TorchFunctionMode

from gradcheck_accum.engine.tape import Tape
from gradcheck_accum.verify.watching.dispatch_modes import without_modes
from gradcheck_accum.verify.watching.function_modes import RemovableMode


def is_of_the_loop() -> bool:
    """Whether Python started the calling thread; autograd has threads of its own, in which it may call hooks."""
    own = threading.get_ident()
    return any(t.ident == own and not isinstance(t, threading._DummyThread) for t in threading.enumerate())


_process = os.getpid()
"""The running process; to ask the operating system at every gradient takes longer."""


def _forked() -> None:
    global _process
    _process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Attention:
    """Whether what happens now is the loop's, and of a window that is watched. Another process is not watched."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._process = _process
        self._busy = 0
        self._worker = 0
        """The thread in which our own work is done."""
        self.asleep = False
        """Whether the loop is in a window that is not to be checked."""
        self._mode: RemovableMode | None = None
        self._looks_away = ExitStack()

    @property
    def elsewhere(self) -> bool:
        """Whether what happens now is not the loop's: our own reference, or another process."""
        return bool(self._busy) or _process != self._process

    @property
    def idle(self) -> bool:
        """Whether what happens now is to be ignored: not the loop's, or in a window that is not watched."""
        return self.asleep or bool(self._busy) or _process != self._process

    @contextmanager
    def listening(self, mode: TorchFunctionMode) -> Iterator[None]:
        """While it is entered, ``mode`` sees the functions of PyTorch that are called, in windows that are watched."""
        with RemovableMode(mode) as self._mode:
            self._listen()
            yield
        self._mode = None

    def sleep(self, asleep: bool) -> None:
        """From now on the loop is in a window that is not to be checked, or in one that is watched."""
        self.asleep = asleep
        self._listen()

    def _listen(self) -> None:
        if self._mode is not None and self.asleep:
            self._mode.off()
        elif self._mode is not None:
            self._mode.on()

    def look_away(self) -> None:
        """Until `look_again` our mode does not see what the loop calls."""
        self._looks_away.enter_context(self.unheard())

    def look_again(self) -> None:
        """What the loop calls from here on is seen."""
        self._looks_away.close()

    def is_at_work(self) -> bool:
        """Whether what the calling thread does is our own reference's work."""
        return bool(self._busy) and threading.get_ident() == self._worker

    def is_at_work_in_another_thread(self) -> bool:
        """Whether another thread does our own reference's work, while the loop goes on in this one."""
        return bool(self._busy) and self._worker != threading.get_ident() and is_of_the_loop()

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """While it is entered, what happens is ours and not the loop's."""
        self._busy += 1
        self._worker = threading.get_ident()
        try:
            with self._tape.paused(), self.unheard(), without_modes():
                yield
        finally:
            self._busy -= 1

    def unheard(self) -> AbstractContextManager[None]:
        """While it is entered, our mode does not see what we call, which is most of what is called in a little loop."""
        return nullcontext() if self._mode is None else self._mode.aside()
