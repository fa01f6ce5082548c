"""Data that a micro-batch prepared from several of its samples at once: boxes of images, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from gradcheck_accum.engine.memory import is_plain
from gradcheck_accum.engine.program import Program


def gather_samples(programs: Sequence[Program]) -> bool:
    """Whether a micro-batch prepared data from a tensor that holds the data of several of its samples (`cat(boxes)`).

    What several micro-batches have used is no micro-batch's own: a mean over a window, or over a data set.
    """
    if len(programs) < 2:
        return False
    used = Counter(address for program in programs for address in {raw.data_ptr() for raw in _raw_of(program)})
    for program in programs:
        own = [raw for raw in _raw_of(program) if used[raw.data_ptr()] == 1]
        data = [leaf for i, leaf in enumerate(program.leaves) if i not in program.prepared] + own
        gathered = {id(raw): parts for raw in own if (parts := _parts_of(raw, data))}
        for how in program.prepared.values():
            found = (raw for raw in how.raw if id(raw) in gathered)
            if how.is_intact and any(how.depends_on_all_of(raw, rows) for raw in found for rows in gathered[id(raw)]):
                return True
    return False


def _raw_of(program: Program) -> list[torch.Tensor]:
    """What a micro-batch's data was prepared from."""
    return [raw for how in program.prepared.values() for raw in how.raw if is_plain(raw)]


def _parts_of(whole: torch.Tensor, data: Sequence[torch.Tensor]) -> list[slice]:
    """The rows of the first and the last of several tensors that ``whole`` holds one after the other."""
    places = sorted(at for own in data if (at := _place(whole, own)) is not None)
    return [slice(*places[0]), slice(*places[-1])] if places and places[0][1] <= places[-1][0] else []


def _place(whole: torch.Tensor, part: torch.Tensor) -> tuple[int, int] | None:
    """Where a tensor holds all rows of a shorter one; None if it does not. Whole numbers are often equal by chance."""
    if not whole.is_floating_point() or not whole.dim() or not is_plain(part) or not part.dim():
        return None
    if whole.dtype is not part.dtype or whole.device != part.device:
        return None
    if whole.shape[1:] != part.shape[1:] or not 0 < len(part) < len(whole):
        return None
    same = whole[: len(whole) - len(part) + 1] == part[0]
    for at in same.flatten(1).all(1).nonzero().flatten().tolist() if same.dim() > 1 else same.nonzero()[:, 0].tolist():
        if torch.equal(whole[at : at + len(part)], part):
            return at, at + len(part)
    return None
