"""For Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_accum.callbacks.run import WatchedRun, WatchOptions
from gradcheck_accum.verify import OnDeviation

if TYPE_CHECKING:
    from typing_extensions import Unpack

try:
    from lightning.pytorch import Callback
except ImportError:  # the same under its older name
    from pytorch_lightning import Callback


class AccumulationCallback(Callback):
    """Checks every n-th optimizer step of a training, and logs its metrics to the trainer's loggers.

        trainer = lightning.Trainer(accumulate_grad_batches=4, callbacks=[AccumulationCallback(every=16)])

    :param every: as in `gradcheck_accum.watch`.
    :param on_deviation: as in `gradcheck_accum.watch`.
    :param options: the other options of `gradcheck_accum.watch`.
    :raises ValueError: if ``every`` is less than 1.
    """

    def __init__(
        self, *, every: int = 16, on_deviation: OnDeviation = "error", **options: Unpack[WatchOptions]
    ) -> None:
        super().__init__()
        self._run = WatchedRun(every, on_deviation, options)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Training begins."""
        self._run.begin()

    def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
        """A micro-batch has been trained on."""
        metrics = self._run.metrics()
        if metrics:
            # Not with self.log, which drops whatever falls between two of the trainer's log_every_n_steps.
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Training has ended."""
        self._run.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Training has raised an exception."""
        self._run.abandon()
