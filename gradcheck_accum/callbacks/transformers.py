"""For Transformers' ``Trainer``, and for what is built on it (TRL, Sentence Transformers)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from gradcheck_accum.callbacks.run import WatchedRun, WatchOptions
from gradcheck_accum.verify import OnDeviation

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AccumulationCallback(TrainerCallback):
    """Checks every n-th optimizer step of a training.

        trainer = Trainer(model, arguments, train_dataset=data)
        trainer.add_callback(AccumulationCallback(every=16, on_deviation="warn", log=trainer.log))

    ``Trainer`` does not signal that a training has raised an exception: it is then watched until the callback is
    garbage collected, trains again, or is closed.

    :param every: as in `gradcheck_accum.watch`.
    :param on_deviation: as in `gradcheck_accum.watch`.
    :param log: called with the metrics of a window after its step; ``trainer.log`` passes them to the trainer's
        loggers.
    :param options: the other options of `gradcheck_accum.watch`.
    :raises ValueError: if ``every`` is less than 1.
    """

    def __init__(
        self,
        *,
        every: int = 16,
        on_deviation: OnDeviation = "error",
        log: Callable[[dict[str, float]], object] | None = None,
        **options: Unpack[WatchOptions],
    ) -> None:
        self._run = WatchedRun(every, on_deviation, options)
        self._log = log
        weakref.finalize(self, self._run.abandon)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Training begins."""
        self._run.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """A step has been taken."""
        metrics = self._run.metrics()
        if metrics and self._log is not None:
            # log() resets should_log, but the trainer's own logs of this step are yet to come.
            wanted = control.should_log
            self._log(metrics)
            control.should_log = wanted

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Training has ended."""
        self._run.end()

    def close(self) -> None:
        """Stop watching after a training has raised an exception."""
        self._run.abandon()
