"""Our mode that intercepts PyTorch's functions, removed for as long as it is not needed.

An active mode costs a call into Python for every function of PyTorch. A script may enter modes of its own meanwhile,
and leave them in any order: ours is removed from among them and put back right inside those that it was entered in.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch._C import _get_function_stack_at, _len_torch_function_stack
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode


class RemovableMode:
    """A mode of this thread that is on, off, or on again."""

    def __init__(self, mode: TorchFunctionMode) -> None:
        self._mode = mode
        self._around: list[TorchFunctionMode] = []
        """The modes that ours is entered in, which outlive it."""

    def on(self) -> None:
        """Enter the mode."""
        modes = _modes()
        if any(mode is self._mode for mode in modes):
            return
        around = [self._is_around(mode) for mode in modes]
        place = around.index(False) if False in around else len(modes)
        self._replace(modes, [*modes[:place], self._mode, *modes[place:]])

    def off(self) -> None:
        """Leave the mode, if it is entered in this thread."""
        modes = _modes()
        self._replace(modes, [mode for mode in modes if mode is not self._mode])

    def aside(self) -> AbstractContextManager[None]:
        """While it is entered, the mode is off if it was the innermost; one that is inside of another's stays on."""
        return _Aside(self._mode)

    def __enter__(self) -> RemovableMode:
        self._around = _modes()
        return self

    def __exit__(self, *error: object) -> None:
        self.off()

    def _is_around(self, other: TorchFunctionMode) -> bool:
        # PyTorch's own for the default device has to be the outermost, whenever that was set.
        return other is _of_default_device() or any(other is mode for mode in self._around)

    @staticmethod
    def _replace(before: list[TorchFunctionMode], after: list[TorchFunctionMode]) -> None:
        same = next((at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a is not b), None)
        same = min(len(before), len(after)) if same is None else same
        for _ in before[same:]:
            _pop_mode()  # type: ignore[no-untyped-call]
        for mode in after[same:]:
            _push_mode(mode)  # type: ignore[no-untyped-call]


class _Aside(AbstractContextManager[None]):
    """A block in which a mode is off, if it was the innermost; a generator would take longer, for every call."""

    __slots__ = ("_is_off", "_mode")

    def __init__(self, mode: TorchFunctionMode) -> None:
        self._mode = mode
        self._is_off = False

    def __enter__(self) -> None:
        depth = _len_torch_function_stack()
        if depth and _get_function_stack_at(depth - 1) is self._mode:
            _pop_mode()  # type: ignore[no-untyped-call]
            self._is_off = True

    def __exit__(self, *error: object) -> None:
        if self._is_off:
            _push_mode(self._mode)  # type: ignore[no-untyped-call]


def _modes() -> list[TorchFunctionMode]:
    """The modes that are entered in this thread, outermost first."""
    return list(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def _of_default_device() -> object:
    """The mode that ``torch.set_default_device`` has entered, None where it has not."""
    return getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
