"""Our own arithmetic inside a script's dispatch modes (one that counts operations, say): they see nothing of it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch._C import _len_torch_dispatch_stack
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.utils._python_dispatch import _disable_current_modes


def without_modes() -> AbstractContextManager[object]:
    """While it is entered, no dispatch mode is active."""
    if _len_torch_dispatch_stack() or _len_torch_dispatch_stack_pre_dispatch():  # type: ignore[no-untyped-call]
        return _disable_current_modes()
    # Mostly there is none, and to find that out takes a tenth of the time.
    return nullcontext()
