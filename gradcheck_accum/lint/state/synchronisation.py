"""Which models average their gradients over the ranks, at each point of a run.

DistributedDataParallel decides it in *forward*: ``no_sync()`` around ``backward`` alone changes nothing. What else has
a ``no_sync`` (FSDP, a framework's own) may decide it later, so that it is known only where both say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gradcheck_accum.lint.state import values as v


class Synchronisation:
    """Which models average their gradients over the ranks, at this point of a run."""

    def __init__(self, *, mentioned: bool) -> None:
        self._mentioned = mentioned
        """Whether the file has a word for leaving gradients local."""
        self._wrapped: set[str] = set()
        self._stated: set[str] = set()
        """Models that were left local at some time: whatever wraps them can do that."""
        self._on: dict[str, bool | None] = {}
        self._forwards: dict[str, bool | None] = {}
        self._prepared: set[str] = set()
        """Models that ran forward, and not past what wraps them, since the last backward."""
        self._passed_by: set[str] = set()
        """Models of which what is wrapped has run by itself."""
        self._ran_past: set[str] = set()
        """Those whose last forward was one past what wraps them."""
        self._is_doubted = False
        """Whether it depends on an answer that is not valid in every turn of its loop."""
        self._made = 0
        """Contexts that were made and have not been entered yet."""

    def wrap(self, sources: Iterable[str]) -> None:
        """DistributedDataParallel was put around models."""
        self._wrapped.update(sources)

    def switch(self, sources: Iterable[str], on: bool | None) -> None:
        """The switch of DistributedDataParallel was set; None where it is not known how."""
        for source in sources:
            self._wrapped.add(source)
            self._stated.add(source)
            self._on[source] = on

    def make_pause(self, sources: frozenset[str], enabled: bool | None) -> v.LocalGradients:
        """A context in which the gradients of models stay local, if it is ``enabled``."""
        self._stated.update(sources)
        self._made += 1
        return v.LocalGradients(sources, enabled)

    def doubt(self) -> None:
        """In which turns of a loop gradients stay local is not known."""
        self._is_doubted = True

    @contextmanager
    def entered(self, context: v.LocalGradients) -> Iterator[None]:
        """The body of a ``with`` statement on such a context."""
        self._made -= context.made_here
        before = {source: self._on.get(source, True) for source in context.sources}
        if context.enabled is not False:
            self._on.update(dict.fromkeys(context.sources, None if context.enabled is None else False))
        try:
            yield
        finally:
            self._on.update(before)

    def forward(self, sources: Iterable[str]) -> None:
        """Models run forward."""
        for source in sources:
            self._forwards[source] = self._on.get(source, True)
            self._prepared.add(source)
            self._ran_past.discard(source)

    @contextmanager
    def passed_by(self, source: str) -> Iterator[None]:
        """A wrapped model runs forward itself: what wraps it averages nothing then, unless it has run as well."""
        prepared = source in self._prepared
        self._passed_by.add(source)
        yield
        if not prepared:
            self._forwards[source] = False
            self._prepared.discard(source)
            self._ran_past.add(source)

    @property
    def knows_wrapped(self) -> bool:
        """Whether any model is known to be wrapped."""
        return bool(self._wrapped)

    def is_wrapped(self, sources: Iterable[str]) -> bool:
        """Whether one of these models is known to be wrapped."""
        return not self._wrapped.isdisjoint(sources)

    def averaged_elsewhere(self, sources: Iterable[str]) -> frozenset[str]:
        """Those models that a function elsewhere, which is given them, cannot run but so that gradients are averaged.

        No word here leaves any on its rank, and what is wrapped is never run by itself.
        """
        return frozenset() if self._mentioned else frozenset(sources) & self._wrapped - self._passed_by

    def ran_past(self, models: Iterable[str]) -> bool:
        """Whether what is wrapped has run forward itself, last, of one of the models that a loss came from."""
        return not self._ran_past.isdisjoint(models)

    def of_backward(self, models: Iterable[str]) -> bool | None:
        """Whether a backward now averages the gradients of the models that a loss came from; None if not known."""
        known = self._wrapped | self._stated
        self._prepared.clear()
        answers = {self._of(model) for model in models if model in known}
        if self._is_doubted or self._made or (self._mentioned and not self._stated):
            # What leaves gradients local in this file was not met, or not where it could be followed.
            return None
        return answers.pop() if len(answers) == 1 else None

    def _of(self, model: str) -> bool | None:
        forward = self._forwards.get(model)
        if model in self._wrapped or forward is self._on.get(model, True):
            return forward
        return None
