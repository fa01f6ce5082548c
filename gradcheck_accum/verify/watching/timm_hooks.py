"""Watches timm's moving averages, schedules and adaptive clip as PyTorch's own.

A script imports timm after watching has begun, so its classes are looked for whenever an optimizer is created.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from gradcheck_accum.verify.watching.observer import Observer


class TimmPieces:
    """Watches timm's classes and functions, once they are imported, until ``stack`` is closed."""

    def __init__(self, observer: Observer, stack: ExitStack) -> None:
        self._observer = observer
        self._stack = stack
        self._watched: set[str] = set()

    def look(self) -> None:
        """Watch what has been imported by now."""
        for name, watch in (
            ("timm.utils.model_ema", self._watch_averages),
            ("timm.scheduler.scheduler", self._watch_schedules),
            ("timm.utils.clip_grad", self._watch_clip),
        ):
            module = sys.modules.get(name)
            if module is not None and name not in self._watched:
                self._watched.add(name)
                watch(module)

    def _replace(self, owner: Any, name: str, wrapped: Callable[[Any], Any]) -> None:
        original = vars(owner).get(name)
        if original is not None:
            setattr(owner, name, functools.wraps(original)(wrapped(original)))
            self._stack.callback(setattr, owner, name, original)

    def _watch_averages(self, module: Any) -> None:
        def wrapped(update: Any) -> Any:
            def watched(average: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
                result = update(average, model, *args, **kwargs)
                self._observer.tell(self._observer.schedules.average_updated, average, model)
                return result

            return watched

        for kind in ("ModelEma", "ModelEmaV2", "ModelEmaV3"):
            if hasattr(module, kind):
                self._replace(getattr(module, kind), "update", wrapped)

    def _watch_schedules(self, module: Any) -> None:
        seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

        def wrapped(rates: Any) -> Any:
            def watched(scheduler: Any, t: int, *args: Any, **kwargs: Any) -> Any:
                found = rates(scheduler, t, *args, **kwargs)
                # It is called with the number of updates so far, and makes a step only if that has changed.
                if found is not None and seen.get(scheduler) != t:
                    seen[scheduler] = t
                    self._observer.tell(self._observer.schedules.scheduler_stepped, scheduler)
                return found

            return watched

        self._replace(module.Scheduler, "_get_values", wrapped)

    def _watch_clip(self, module: Any) -> None:
        def wrapped(clip: Any) -> Any:
            def watched(parameters: Any, clip_factor: float = 0.01, *args: Any, **kwargs: Any) -> Any:
                own = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
                self._observer.tell(self._observer.changes.before_clip, own)
                result = clip(own, clip_factor, *args, **kwargs)
                self._observer.tell(self._observer.changes.after_clip, own, "adaptive", float(clip_factor), 2.0)
                return result

            return watched

        self._replace(module, "adaptive_clip_grad", wrapped)
