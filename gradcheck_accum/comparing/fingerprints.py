"""Fingerprints of the rows of data that a loss was computed from."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from gradcheck_accum.comparing.rows import Column, Rows
from gradcheck_accum.engine.joining import counts_rows
from gradcheck_accum.engine.memory import is_plain
from gradcheck_accum.engine.program import Program
from gradcheck_accum.engine.samples import are_places, by_sample, own_leaves
from gradcheck_accum.engine.tensor_bytes import raw
from gradcheck_accum.verify.book.records import Record

_SIZE = 8
"""Bytes of a fingerprint."""

_FILLS = (-100, -1, 0, 1)
"""What sequences of numbers are padded with: tokens with 0 or 1, masks with 0, labels with -100 or -1."""


_VALUES_OF_MASK = 2
_FIRST = 16
"""Values of a tensor that are looked at before all of them are."""


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
        _enter(rows, {i: program.leaves[i] for i in own}, 1)
        rows.count = 1
        return rows
    parts = {}
    for held in samples.held:
        leaf = program.leaves[held.leaf].detach()
        order = [row for sample in range(samples.count) for row in held.rows(sample)]
        if order != list(range(leaf.shape[held.axis])):
            leaf = leaf.index_select(held.axis, torch.tensor(order, device=leaf.device))
        parts[held.leaf] = leaf.movedim(held.axis, 0)
    singles = []
    if samples.single:
        places = [min(each) for each in samples.single]
        for own_of_sample in zip(*samples.single, strict=True):
            singles.append({at: program.leaves[leaf] for at, leaf in zip(places, own_of_sample, strict=True)})
    if samples.count == 1 and singles:
        # All tensors of one sample belong together.
        parts |= singles.pop()
    _enter(rows, parts, samples.count)
    for leaves in singles:
        one = Rows()
        _enter(one, leaves, 1)
        rows.add(one)
    rows.count = samples.count
    return rows


def _is_data(leaf: torch.Tensor) -> bool:
    return not isinstance(leaf, nn.Parameter) and is_plain(leaf) and bool(leaf.numel())


def _column(position: int, leaf: torch.Tensor) -> Column:
    return position, str(leaf.dtype)


def _enter(rows: Rows, leaves: Mapping[int, torch.Tensor], count: int) -> None:
    """Enter tensors, by their positions, that have ``count`` rows each."""
    silent = {i for i, leaf in leaves.items() if are_places(leaf) or _is_mask(leaf, count)}
    ends = {i: _ends(leaf, count) for i, leaf in leaves.items() if _is_padded(leaf, count)}
    _without_shift([(own, leaves[i].numel()) for i, own in sorted(ends.items()) if not leaves[i].is_floating_point()])
    for i, leaf in leaves.items():
        column = _column(i, leaf)
        rows.columns[column] = Counter(_fingerprints(leaf, count, ends.get(i)))
        if i in silent:
            rows.silent.add(column)
            rows.counting = rows.counting or counts_rows(leaf, count)


def _without_shift(sequences: Sequence[tuple[_Ends, int]]) -> None:
    """Let each sequence end, row by row, where a later one of its length ends one token before it.

    Where inputs and targets are one sequence shifted by a token (``ids[:, :-1]`` and ``ids[:, 1:]``), the last token is
    an input in all rows but the longest of a micro-batch: its target is padding, so it has no part in the loss. Which
    rows these are depends on the micro-batch, so a row alone has to decide. Targets come to the loss after inputs.
    """
    stops = [own.stop for own, _ in sequences]
    for i, (own, length) in enumerate(sequences):
        for j in range(i + 1, len(sequences)):
            if sequences[j][1] == length:
                own.end_at(torch.where(stops[j] == stops[i] - 1, stops[j], own.stop))


def _is_mask(leaf: torch.Tensor, count: int) -> bool:
    """Whether a tensor of ``count`` rows has no more than two values, and several of them in a row."""
    if leaf.numel() <= count:
        return False
    # Nearly all other tensors show more values than that at once.
    first = leaf.detach()[:1].reshape(-1)[:_FIRST].tolist()
    return len({*first}) <= _VALUES_OF_MASK and len(torch.unique(leaf.detach())) <= _VALUES_OF_MASK


class _Ends:
    """Where, in each row of a tensor, what counts begins and ends: around it is padding.

    ``counts`` says of each number whether it is none that sequences are padded with.
    """

    def __init__(self, counts: torch.Tensor) -> None:
        self._counts = counts
        self.start = counts.to(torch.uint8).argmax(1)
        self.stop = _after_last(counts)

    def end_at(self, stop: torch.Tensor) -> None:
        """Let no row go further than to ``stop``, without what would be padding at its end then."""
        places = torch.arange(self._counts.shape[1])
        self.stop = _after_last(self._counts & (places < stop.unsqueeze(1)))


def _after_last(counts: torch.Tensor) -> torch.Tensor:
    """The place after the last that counts in each row; 0 where none does."""
    length = counts.shape[1]
    return (length - counts.flip(1).to(torch.uint8).argmax(1)) * counts.any(1)


def _is_padded(leaf: torch.Tensor, count: int) -> bool:
    """Whether a tensor of ``count`` rows may be padded.

    Numbers that are no integers are padded with 0 alone, and most show at once that they are not. A sequence of tokens
    that is not padded may still end earlier than it seems (`_without_shift`).
    """
    if leaf.numel() <= count or leaf.is_complex():
        return False
    if not leaf.is_floating_point():
        return True
    flat = leaf.detach().reshape(count, -1)
    return not (bool(flat[:, 0].all()) and bool(flat[:, -1].all()))


def _ends(leaf: torch.Tensor, count: int) -> _Ends:
    flat = leaf.detach().cpu().reshape(count, leaf.numel() // count)
    return _Ends(flat != 0 if flat.is_floating_point() else _is_no_fill(flat.long()))


def _fingerprints(leaf: torch.Tensor, count: int, ends: _Ends | None = None) -> list[bytes]:
    """A fingerprint for each of ``count`` equal parts of a tensor, without the padding beyond its ``ends``."""
    content = raw(leaf)
    size = len(content) // count
    begins = range(0, len(content), size)
    if ends is None and not _is_padded(leaf, count):
        return [_digest(content[begin : begin + size]) for begin in begins]
    ends = ends or _ends(leaf, count)
    of_one = leaf.element_size()
    within = zip(begins, (ends.start * of_one).tolist(), (ends.stop * of_one).tolist(), strict=True)
    return [_digest(content[begin + start : begin + stop]) for begin, start, stop in within]


def _is_no_fill(numbers: torch.Tensor) -> torch.Tensor:
    counts = torch.ones_like(numbers, dtype=torch.bool)
    for fill in _FILLS:
        counts &= numbers != fill
    return counts


def _digest(row: memoryview) -> bytes:
    return hashlib.blake2b(row, digest_size=_SIZE).digest()


def fingerprint(tensors: Sequence[torch.Tensor]) -> bytes:
    """One fingerprint for several tensors."""
    found = hashlib.blake2b(digest_size=_SIZE)
    for tensor in tensors:
        found.update(raw(tensor))
    return found.digest()
