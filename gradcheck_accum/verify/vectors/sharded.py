"""Weights that ``fully_shard`` (FSDP2) spreads over the ranks: where their gradients are seen, and how compared.

The optimizer holds a rank's shard of each weight. A module that runs gathers the whole weight, and it is that one which
backward fills, with this rank's own gradient. Where FSDP2 synchronizes, the ranks' gradients are averaged at the end of
backward and each rank gets its shard of the average as ``.grad``; otherwise the whole gradient is kept outside
``.grad``.

So no rank ever holds the whole averaged gradient, and none may keep whole gradients: saving that memory is why weights
are sharded. The gradients of each rank's backward are sketched as they arrive
(`gradcheck_accum.verify.vectors.sketch`), every shard separately, and at the step so is the rank's own shard. The
concatenated rows of all ranks are a sketch of the whole.

The attributes of PyTorch's objects that are read here are not public; they are read only in this module.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradcheck_accum.engine.rank_local import is_flattened, is_sharded
from gradcheck_accum.verify.vectors.inner_products import InnerProducts, Vector
from gradcheck_accum.verify.vectors.sketch import Sketcher

FLATTENED = (
    "the weights are sharded over the ranks by FullyShardedDataParallel (FSDP1), whose flattened gradients are not "
    "followed; those of fully_shard (FSDP2) are"
)
OTHERWISE_MADE = (
    "the weights are sharded over the ranks (DTensor), and this version of PyTorch does not show what fully_shard "
    "divides their gradients by: use a later one"
)
NOT_GATHERED = "the weights are sharded over the ranks (DTensor), and fully_shard was not seen to gather them"
SEVERAL_MESHES = "the weights are sharded over the ranks in several ways (HSDP, tensor parallelism, several meshes)"
PARTLY_SHARDED = "some weights are sharded over the ranks; the gradients of the others stay local"
REWORKED = "a fully_shard hook does not average the gradients (set_all_reduce_hook)"
DIVIDED_UNEVENLY = "the weights' gradients are divided by different factors (set_gradient_divide_factor)"
NOTHING_HERE = "the weights are so small that some rank holds none of them"
NORM_UNKNOWN = "the norm over all shards that the gradients were clipped by is unknown"

_OF_A_GROUP = "fsdp_params", "mesh_info", "device", "gradient_divide_factor", "_all_reduce_hook"
_OF_A_WEIGHT = (
    "sharded_param",
    "unsharded_param",
    "unsharded_accumulated_grad",
    "fsdp_placement",
    "orig_dtype",
    "param_dtype",
    "reduce_dtype",
)
"""What is read of FSDP2's own objects. Where another PyTorch names them otherwise, weights count as not gathered."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """What a backward did to the gradients of sharded weights.

    ``synced`` is None where some were averaged and others were not; ``ranks`` is how many the average is over, ``keys``
    are the weights that hold one now, and ``size`` is of how many bytes it was made. ``waited`` is for how many
    seconds backward was held up, None where a GPU does the waiting. ``rescale`` is the number of ranks over what their
    sum is divided by instead (``set_gradient_divide_factor``).
    """

    synced: bool | None
    ranks: int | None
    keys: frozenset[int]
    size: int
    waited: float | None
    rescale: float


class Shards:
    """The sharded weights of a run, each by the identity of the shard that its optimizer holds."""

    def __init__(self, arrived: Callable[[int, torch.Tensor], None]) -> None:
        self._arrived = arrived
        """Called with every gradient that backward computes for a gathered weight."""
        self._weights: dict[int, tuple[Any, Any]] = {}
        """FSDP2's own objects for a weight, and for the group of weights that are gathered and averaged together."""
        self._hooks: dict[int, Any] = {}
        self._restore: Callable[[], None] | None = None
        self._waited = 0.0
        """Seconds that FSDP2 has spent inside backward since the last one ended, mostly on averages."""
        self._places: dict[int, int] = {}
        self._is_made_otherwise = False
        self._sketched = Sketcher()

    def adopt(self, shard: torch.Tensor) -> None:
        """An optimizer holds ``shard``. All ranks adopt in one order: by its place it is the same weight on each."""
        self._places.setdefault(id(shard), len(self._places))
        self.listen()

    def listen(self) -> None:
        """Watch the weights that are gathered from now on, if any weight is sharded."""
        # Importing FSDP2 takes longer than some runs; a script that shards weights has imported it.
        module = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_param_group")
        group = getattr(module, "FSDPParamGroup", None)
        if group is None or self._restore is not None or not self._places:
            return
        gather, average = group.wait_for_unshard, group.post_backward

        @functools.wraps(gather)
        def wait_for_unshard(group: Any) -> None:
            gather(group)
            if not torch.compiler.is_compiling():
                self._gathered(group)

        @functools.wraps(average)
        def post_backward(group: Any, *unused: Any) -> None:
            begun = time.perf_counter()
            average(group, *unused)
            self._waited += time.perf_counter() - begun

        def restore() -> None:
            group.wait_for_unshard, group.post_backward = gather, average

        group.wait_for_unshard, group.post_backward = wait_for_unshard, post_backward
        self._restore = restore

    def _gathered(self, group: Any) -> None:
        self._is_made_otherwise = not all(hasattr(group, name) for name in _OF_A_GROUP)
        weights = () if self._is_made_otherwise else group.fsdp_params
        for weight in weights:
            if not hasattr(weight, "_unsharded_param") or not all(hasattr(weight, name) for name in _OF_A_WEIGHT):
                continue
            whole = weight.unsharded_param
            if not whole.requires_grad or is_sharded(whole):
                continue
            # A checkpoint that is loaded may put another shard in its place.
            self._weights[id(weight.sharded_param)] = weight, group
            if id(whole) in self._hooks:
                continue

            def tell(gradient: torch.Tensor, weight: Any = weight) -> None:
                self._arrived(id(weight.sharded_param), gradient)

            self._hooks[id(whole)] = whole.register_hook(tell)

    def release(self) -> None:
        """Stop watching."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        if self._restore is not None:
            self._restore()
            self._restore = None

    def of_backward(self, arrived: Iterable[int]) -> Reduced | None:
        """What the backward that has just run did with the gradients that arrived; None where none is of a shard."""
        arrived = set(arrived)
        own = {key: self._weights[key] for key in arrived if key in self._weights}
        if not own:
            return None
        # What waits is kept whole by FSDP2, which otherwise keeps nothing of a backward.
        waiting = {
            key
            for key, (weight, _) in self._weights.items()
            if weight.unsharded_accumulated_grad is not None or weight.unsharded_param.grad is not None
        }
        reduced = own.keys() - waiting
        waited, self._waited = self._waited, 0.0
        on_cpu = all(group.device.type == "cpu" for _, group in own.values())
        ranks = {group.mesh_info.mesh.size() for _, group in own.values()}
        return Reduced(
            None if (reduced and reduced < own.keys()) or len(own) < len(arrived) else bool(reduced),
            ranks.pop() if len(ranks) == 1 else None,
            # A weight that this rank did not use may have got what the others made for it.
            frozenset(self._weights.keys() - waiting) if reduced else frozenset(),
            sum(own[key][0].unsharded_param.nbytes for key in reduced),
            waited if on_cpu else None,
            next(_rescale(group) for _, group in own.values()),
        )

    def why_not(self, shards: Sequence[torch.Tensor]) -> str:
        """Why the gradients of these weights, of which some are sharded, cannot be compared; empty if they can."""
        if any(is_flattened(shard) for shard in shards):
            return FLATTENED
        if not all(is_sharded(shard) for shard in shards):
            return PARTLY_SHARDED
        known = [self._weights[id(shard)] for shard in shards if id(shard) in self._weights]
        if len({group.mesh_info.mesh for _, group in known}) > 1 or any(_spread(shard) != 1 for shard in shards):
            return SEVERAL_MESHES
        # A weight without a gradient was not used, and whether it would have been gathered does not matter.
        if any(id(shard) not in self._weights and own_part(shard.grad) is not None for shard in shards) or not known:
            return OTHERWISE_MADE if self._is_made_otherwise else NOT_GATHERED
        if any(group._all_reduce_hook is not None for _, group in known):
            return REWORKED
        if len({_rescale(group) for _, group in known}) > 1:
            return DIVIDED_UNEVENLY
        return "" if any(own.numel() for own in map(own_part, shards) if own is not None) else NOTHING_HERE

    def dtype(self, shards: Sequence[torch.Tensor]) -> torch.dtype:
        """The coarsest dtype that the gradients of these weights are added up in: the average may have its own."""
        used = {shard.dtype for shard in shards}
        for weight, _ in (self._weights[id(shard)] for shard in shards if id(shard) in self._weights):
            used.add(weight.reduce_dtype or weight.param_dtype or weight.orig_dtype)
        return max(used, key=lambda dtype: torch.finfo(dtype).eps)

    # Sketches

    def sketch(self, key: int, gradient: torch.Tensor) -> torch.Tensor:
        """The sketch of a whole gradient of the weight ``key``, a row for each rank's shard, in float64."""
        weight, group = self._weights[key]
        ranks = group.mesh_info.mesh.size()
        pieces = list(torch.chunk(gradient, ranks, dim=weight.fsdp_placement.dim))
        return self._rows(key, [*pieces, *[None] * (ranks - len(pieces))])

    def products(
        self, vectors: Sequence[Vector], held: Container[int | None], shards: Sequence[torch.Tensor]
    ) -> tuple[InnerProducts, int]:
        """The sketches of gradients over ``shards`` as the columns of a factor, and over how many ranks they are.

        Those of ``vectors`` whose index is in ``held`` are what this rank holds of a gradient, which fills its own rows
        alone; the others are sketches already.
        """
        _, group = next(self._weights[id(shard)] for shard in shards if id(shard) in self._weights)
        mesh = group.mesh_info.mesh
        ranks, here = mesh.size(), mesh.get_local_rank()
        sketches: list[Vector] = []
        for index, vector in enumerate(vectors):
            if index in held:
                vector = [
                    None if part is None else self._rows(id(s), [part if r == here else None for r in range(ranks)])
                    for part, s in zip(vector, shards, strict=True)
                ]
            sketches.append(vector)
        return self._sketched.products(sketches, shards, ranks), ranks

    def _rows(self, key: int, pieces: Sequence[torch.Tensor | None]) -> torch.Tensor:
        return self._sketched.rows(self._places[key], pieces)


def own_part(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """This rank's part of a tensor: the shard of a sharded one, all of any other."""
    if tensor is None or not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        local: torch.Tensor = tensor.to_local()
    return local


def whole_norm(norm: Any) -> torch.Tensor | None:
    """The norm over all shards that a clip returned, on this rank; None where it was not over shards, or is partial."""
    if not hasattr(norm, "placements") or not all(placement.is_replicate() for placement in norm.placements):
        return None
    return own_part(norm)


def _spread(shard: torch.Tensor) -> int:
    """Over how many dimensions of ranks a weight is spread."""
    return len(getattr(shard, "placements", ()))


def _rescale(group: Any) -> float:
    ranks = float(group.mesh_info.mesh.size())
    return ranks / (group.gradient_divide_factor or ranks)
