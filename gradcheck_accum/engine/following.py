"""Who follows gradients through the calls that a loop makes, and the attributes that it reads and sets.

A mode that intercepts PyTorch's functions (`gradcheck_accum.engine.tape`) notifies its follower of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

READ_GRADIENT = vars(torch._C.TensorBase)["grad"].__get__
"""The getter of a tensor's ``.grad``."""

ASSIGN_GRADIENT = vars(torch._C.TensorBase)["grad"].__set__
"""The setter of a tensor's ``.grad``."""

WRITE_DATA = vars(torch._C.TensorBase)["data"].__set__
"""The setter of a tensor's ``.data``."""


class Follower(Protocol):
    """Is notified of calls outside modules, unless it ``is_off``: of all, if it ``is_following`` what they compute.

    Otherwise it is notified of those whose names end as those of in-place functions and of attributes do.
    """

    is_off: bool
    is_following: bool

    def before(self, function: Any, args: Any, kwargs: Any) -> None:
        """A call is about to be made."""

    def after(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """It has returned ``result``."""


def is_followed(follower: Follower, name: str) -> bool:
    """Whether a call of the function of this ``name`` is passed on; asked for nearly every call that a loop makes."""
    return not follower.is_off and (follower.is_following or name.endswith("_"))


def followed(follower: Follower, call: Callable[[], Any], function: Any, args: Any, kwargs: Any) -> Any:
    """The result of ``call``, which calls ``function``: the follower is notified before and after it."""
    with torch._C.DisableTorchFunction():
        follower.before(function, args, kwargs)
    result = call()
    with torch._C.DisableTorchFunction():
        follower.after(function, args, kwargs, result)
    return result
