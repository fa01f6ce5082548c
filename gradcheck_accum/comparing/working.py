"""Runs that have been started, and the waiting for their ends. Never imports torch."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.verify.process.parent import GRACE, HEEDED


@dataclass(frozen=True, slots=True)
class Started:
    """A run that has been started: what waits for its end, what asks for it, and what ends it now."""

    until_end: Callable[[], VerifyResult]
    ask_to_end: Callable[[], object]
    kill: Callable[[], object]


class Working:
    """A started run, and the thread that waits for its end; ``ended`` can be read from when it has."""

    def __init__(self, started: Started) -> None:
        self.started = started
        self.result: VerifyResult | None = None
        self.ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self.result = self.started.until_end()
        finally:
            os.close(self._end)

    def join(self, patience: float | None = None) -> None:
        """Wait for its end, so many seconds at most."""
        self._thread.join(patience)

    @property
    def is_alive(self) -> bool:
        """Whether it has yet to end."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Release the descriptor, after the run has ended."""
        os.close(self.ended)


def until_all_end(runs: Sequence[Working], before: Callable[[], object] | None = None) -> bool:
    """Call ``before``, and wait for the ends of all runs; returns whether that was interrupted (Ctrl-C).

    Then, and on any other exception, they are asked to end, and killed if they do not; those that the terminal
    interrupted too may have ended already.
    """
    is_interrupted = False
    try:
        if before is not None:
            before()
        for run in runs:
            run.join()
    except KeyboardInterrupt:
        is_interrupted = True
        _join(runs, HEEDED)
    finally:
        _end(runs)
    return is_interrupted


def _join(runs: Sequence[Working], patience: float) -> None:
    """Wait for the ends of all runs, so many seconds at most."""
    latest = time.monotonic() + patience
    for run in runs:
        run.join(max(latest - time.monotonic(), 0.0))


def _end(runs: Sequence[Working]) -> None:
    try:
        for run in runs:
            if run.is_alive:
                run.started.ask_to_end()
        _join(runs, GRACE)
    finally:
        for run in runs:
            if run.is_alive:
                run.started.kill()
        for run in runs:
            run.join()
            run.close()
