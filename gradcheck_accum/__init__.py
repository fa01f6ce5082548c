"""Correctness verification and linting for gradient accumulation in PyTorch.

    import gradcheck_accum

    gradcheck_accum.check(train_one_epoch, model, loader, optimizer)   # one call, judged
    with gradcheck_accum.watch(every=16):                              # every 16th window of a long run
        train(model, loader, optimizer)

Importing this package imports nothing else: `check`, `watch` and what they raise come with PyTorch when they are used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, which takes as long to load as half of a bare start of Python
if TYPE_CHECKING:
    from typing import Any

    from gradcheck_accum.comparing import compare
    from gradcheck_accum.verify import AccumulationError, AccumulationWarning, check, watch

__version__ = "0.1.0"
__all__ = ["AccumulationError", "AccumulationWarning", "__version__", "check", "compare", "watch"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name == "compare":
        from gradcheck_accum.comparing.loop import compare

        return compare
    if name in __all__:
        from gradcheck_accum import verify

        return getattr(verify, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext gradcheck_accum`` in a notebook: gives it the cell magic ``%%accum``."""
    from gradcheck_accum import magics

    magics.load(shell)
