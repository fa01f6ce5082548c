"""Random numbers that depend on how a batch is split: how much they matter, and how to disable dropout.

A mask that is drawn for 15 rows at once differs from three masks of 5 rows. Two gradients that differ by their masks
show nothing about the loop, so the reference's own gradient is computed twice more, with other random numbers: the
difference of these is due to masks alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn

from gradcheck_accum.comparing.state import generators, seed_generators, set_generators
from gradcheck_accum.engine.determinism import untouched, without_hooks, without_warnings
from gradcheck_accum.verify.vectors.inner_products import dense, norm_of
from gradcheck_accum.verify.watching.companion import AtStep

_SEEDS = (1, 2)
_DROPOUTS = ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")


@contextmanager
def without_dropout() -> Iterator[None]:
    """While it is entered, nothing is dropped out, whatever the script sets."""
    functions = nn.functional
    before: dict[str, Any] = {name: getattr(functions, name) for name in _DROPOUTS}
    attention = functions.scaled_dot_product_attention

    def silenced(original: Any) -> Any:
        @wraps(original)
        def keep(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            return original(input, p, False, inplace)

        return keep

    def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, **others: Any) -> Any:
        return attention(query, key, value, attn_mask, 0.0, **others)

    for name, original in before.items():
        setattr(functions, name, silenced(original))
    functions.scaled_dot_product_attention = attend  # type: ignore[assignment]
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(functions, name, original)
        functions.scaled_dot_product_attention = attention


def spread_of(step: AtStep) -> float | None:
    """|g_a - g_b| / |g| of two gradients that differ by random numbers alone; None where they cannot be computed."""
    programs = [record.program for record in step.records]
    wanted = [p for p in step.parameters if p.requires_grad]
    if not wanted or any(program is None for program in programs):
        return None
    modules = [module for program in programs if program is not None for module in program.modules]
    states, drawn = generators(), []
    try:
        with untouched(modules), without_warnings(), without_hooks(wanted):
            for seed in _SEEDS:
                seed_generators(seed)
                with torch.enable_grad():
                    losses = [program.run(program.leaves) for program in programs if program is not None]
                    total = torch.stack([loss.reshape(()) for loss in losses]).sum()
                    drawn.append(torch.autograd.grad(total, wanted, allow_unused=True))
    except RuntimeError:
        return None
    finally:
        set_generators(states)
    first, second = ([None if g is None else dense(g) for g in own] for own in drawn)
    apart = [a - b for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    size = norm_of([g for g in first if g is not None]) if apart else 0.0
    return norm_of(apart) / size if size else None
