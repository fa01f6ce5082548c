"""What the loop's own clips do to a gradient: applied to a copy, to know what they should have left of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gradcheck_accum.verify.measure import dense


@dataclass(frozen=True, slots=True)
class ClipCall:
    """One clip as the loop made it: by ``norm`` of order ``norm_type``, or by ``value``.

    ``keys`` are the identities of the parameters that it was given. ``norm`` is the norm that it found over the shards
    of all ranks, None where the parameters are not sharded.
    """

    keys: frozenset[int]
    kind: str
    limit: float
    norm_type: float
    norm: torch.Tensor | None = None


def clipped(
    gradients: Sequence[torch.Tensor | None], keys: Sequence[int], calls: Sequence[ClipCall]
) -> list[torch.Tensor | None] | None:
    """``gradients`` of the parameters ``keys`` after ``calls``, in order; None where a norm is over others as well.

    The factor is that of ``torch.nn.utils.clip_grad_norm_``: min(1, limit / (norm + 1e-6)).
    """
    result = {key: None if g is None else dense(g) for key, g in zip(keys, gradients, strict=True)}
    for call in calls:
        own = {key: g for key, g in result.items() if key in call.keys and g is not None}
        if call.kind == "value":
            result |= {key: g.clamp(-call.limit, call.limit) for key, g in own.items()}
            continue
        if not call.keys <= set(keys):
            return None
        if own:
            norm = call.norm
            if norm is None:
                norms = torch.stack([torch.linalg.vector_norm(g, call.norm_type) for g in own.values()])
                norm = torch.linalg.vector_norm(norms, call.norm_type)
            factor = torch.clamp(call.limit / (norm + 1e-6), max=1.0)
            result |= {key: g * factor.to(g.dtype) for key, g in own.items()}
    return [result[key] for key in keys]
