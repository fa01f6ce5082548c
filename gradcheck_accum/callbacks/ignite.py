"""For Ignite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ignite.engine import Engine, Events

from gradcheck_accum.callbacks.run import WatchedRun, WatchOptions
from gradcheck_accum.verify import OnDeviation

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AccumulationHandler:
    """Checks every n-th optimizer step of an engine, and adds its metrics to ``engine.state.metrics`` for its loggers.

        AccumulationHandler(every=16).attach(trainer)

    :param every: as in `gradcheck_accum.watch`.
    :param on_deviation: as in `gradcheck_accum.watch`.
    :param options: the other options of `gradcheck_accum.watch`.
    :raises ValueError: if ``every`` is less than 1.
    """

    def __init__(
        self, *, every: int = 16, on_deviation: OnDeviation = "error", **options: Unpack[WatchOptions]
    ) -> None:
        self._run = WatchedRun(every, on_deviation, options)

    def attach(self, engine: Engine) -> None:
        """Watch the training of an engine whenever it runs.

        :param engine: the engine whose process function trains.
        """
        engine.add_event_handler(Events.STARTED, self._run.begin)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._log)
        for ending in (Events.COMPLETED, Events.TERMINATE):
            engine.add_event_handler(ending, self._run.end)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._raised)

    def _log(self, engine: Engine) -> None:
        engine.state.metrics.update(self._run.metrics())

    def _raised(self, engine: Engine, error: BaseException) -> None:
        self._run.abandon()
        if len(engine._event_handlers[Events.EXCEPTION_RAISED]) == 1:
            # With a handler for exceptions attached, Ignite no longer raises them itself.
            raise error
