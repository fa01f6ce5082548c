"""Fingerprints of the rows of data that a loss was computed from."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from gradcheck_accum.engine.joining import counts_rows
from gradcheck_accum.engine.memory import is_plain
from gradcheck_accum.engine.samples import are_places, by_sample, own_leaves
from gradcheck_accum.engine.tape import Program
from gradcheck_accum.side_by_side.raw import raw
from gradcheck_accum.side_by_side.rows import Column, Rows
from gradcheck_accum.verify.records import Record

_SIZE = 8
"""Bytes of a fingerprint."""

_FILLS = (-100, -1, 0, 1)
"""What sequences of numbers are padded with: tokens with 0 or 1, masks with 0, labels with -100 or -1."""


_VALUES_OF_MASK = 2


def rows_seen(records: Sequence[Record]) -> Rows | None:
    """The rows that several backwards ran on; None where it was not recorded what one of them was computed from."""
    programs = [record.program for record in records]
    known = [program for program in programs if program is not None]
    if len(known) < len(programs):
        return None
    total = Rows()
    counted: dict[int, int] = {}
    for record, program in zip(records, known, strict=True):
        own = _rows_of(program, known)
        counted[record.event.micro_batch] = max(own.count, counted.get(record.event.micro_batch, 0))
        own.count = 0
        total.add(own)
    total.count = sum(counted.values())
    return total


def _rows_of(program: Program, others: Sequence[Program]) -> Rows:
    """The rows of one micro-batch, in those of its tensors that have as many rows as it has samples."""
    own = [i for i in own_leaves(program, others) if _is_data(program.leaves[i])]
    samples = next(by_sample(program, own, own), None)
    rows = Rows()
    if samples is None:
        for i in own:
            _enter(rows, i, program.leaves[i], 1)
        rows.count = 1
        return rows
    for held in samples.held:
        leaf = program.leaves[held.leaf]
        order = [row for sample in range(samples.count) for row in held.rows(sample)]
        chosen = leaf.detach().index_select(held.axis, torch.tensor(order, device=leaf.device))
        _enter(rows, held.leaf, chosen.movedim(held.axis, 0), samples.count)
    for each in samples.single:
        for i in each:
            one = Rows()
            _enter(one, min(each), program.leaves[i], 1)
            rows.add(one)
    rows.count = samples.count
    return rows


def _is_data(leaf: torch.Tensor) -> bool:
    return not isinstance(leaf, nn.Parameter) and is_plain(leaf) and bool(leaf.numel())


def _column(position: int, leaf: torch.Tensor) -> Column:
    return position, str(leaf.dtype)


def _enter(rows: Rows, position: int, leaf: torch.Tensor, count: int) -> None:
    column = _column(position, leaf)
    rows.columns[column] = Counter(_fingerprints(leaf, count))
    if are_places(leaf) or _is_mask(leaf, count):
        rows.silent.add(column)
        rows.counting = rows.counting or counts_rows(leaf, count)


def _is_mask(leaf: torch.Tensor, count: int) -> bool:
    """Whether a tensor of ``count`` rows has no more than two values, and several of them in a row."""
    values: torch.Tensor = torch.unique(leaf.detach())
    return leaf.numel() > count and len(values) <= _VALUES_OF_MASK


def _fingerprints(leaf: torch.Tensor, count: int) -> list[bytes]:
    """A fingerprint for each of ``count`` equal parts of a tensor, without what pads it."""
    size, length = leaf.element_size(), leaf.numel() // count
    rows = raw(leaf, count)
    if length == 1 or leaf.is_complex():
        return [_digest(row) for row in rows]
    flat = leaf.detach().cpu().reshape(count, length)
    counts = flat != 0 if flat.is_floating_point() else _is_no_fill(flat.long())
    # Of a row in which nothing counts, nothing is left.
    first = counts.to(torch.uint8).argmax(1) * size
    last = (length - counts.flip(1).to(torch.uint8).argmax(1)) * counts.any(1) * size
    ends = zip(rows, first.tolist(), last.tolist(), strict=True)
    return [_digest(row[start:stop]) for row, start, stop in ends]


def _is_no_fill(numbers: torch.Tensor) -> torch.Tensor:
    counts = torch.ones_like(numbers, dtype=torch.bool)
    for fill in _FILLS:
        counts &= numbers != fill
    return counts


def _digest(row: Any) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=_SIZE).digest()


def fingerprint(tensors: Sequence[torch.Tensor]) -> bytes:
    """One fingerprint for several tensors."""
    found = hashlib.blake2b(digest_size=_SIZE)
    for tensor in tensors:
        found.update(raw(tensor).tobytes())
    return found.digest()
