"""Gradients of several ranks, compared by their sketches, so that no rank has to send one to another.

The large batch of a step is spread over the ranks, and so is its gradient: what each rank's micro-batches contributed
is known on that rank alone. A sketch S v of a gradient is short, linear, and made with the same S on every rank, so
that ‖g - Σ w_j g_j‖ follows from the sketches of all of them when the run has ended, whatever weights w_j it shows.

S multiplies every element by a random sign and adds up each BUCKETS-th element (the AMS or tug-of-war sketch: Alon,
Matias, Szegedy, J. Comput. Syst. Sci. 58, 1999; with a fixed bucket for each element: Charikar, Chen, Farach-Colton,
Theor. Comput. Sci. 312, 2004). ‖S v‖² is ‖v‖² on average, with a standard deviation of at most √(2 / BUCKETS) ‖v‖²: a
norm is known to about 3 %. Of a model with no more than BUCKETS parameters it is exact, and so is, of any, whether one
gradient is a multiple of another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradcheck_accum.verify.measure import InnerProducts, Vector, block_size, dense

BUCKETS = 512


class Sketcher:
    """Makes the sketches of one rank; the signs are the same on every rank, and kept, a byte for each parameter."""

    def __init__(self) -> None:
        self._signs: dict[tuple[int, int, torch.device], torch.Tensor] = {}

    def __call__(self, vectors: Sequence[Vector], parameters: Sequence[torch.Tensor]) -> InnerProducts:
        """The sketches of ``vectors``, gradients over ``parameters``, as the columns of a factor."""
        made: dict[tuple[int, ...], torch.Tensor] = {}
        columns = []
        for vector in vectors:
            # The gradient before a clip and the one that was used are mostly the same tensors.
            key = tuple(id(part) for part in vector)
            if key not in made:
                made[key] = self._sketch(vector, parameters)
            columns.append(made[key])
        return InnerProducts(torch.stack(columns, dim=1), is_factor=True)

    def rows(self, place: int, pieces: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """The sketch of one parameter's gradient piece by piece: a row for each, zeros where it is None.

        ``place`` is the parameter's, the same on every rank. Made before the other parameters' gradients are known, the
        rows are put together with theirs by `joined`.
        """
        device = next((piece.device for piece in pieces if piece is not None), torch.device("cpu"))
        found = torch.zeros(len(pieces), BUCKETS, dtype=torch.float64, device=device)
        for row, piece in enumerate(pieces):
            if piece is not None:
                self._fold(dense(piece).detach().reshape(-1), place * len(pieces) + row, found[row])
        return found

    @staticmethod
    def joined(parts: Vector, parameters: Sequence[torch.Tensor], pieces: int) -> torch.Tensor:
        """The sketch of a gradient over ``parameters`` from the rows of each, of ``pieces`` each: one flat column."""
        total = torch.zeros(pieces, BUCKETS, dtype=torch.float64)
        offset = 0
        for rows, parameter in zip(parts, parameters, strict=True):
            if rows is not None:
                total += torch.roll(rows.cpu(), offset % BUCKETS, dims=1)
            offset += parameter.numel()
        return total.reshape(-1)

    def _sketch(self, vector: Vector, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        found: dict[torch.device, torch.Tensor] = {}
        offset = 0
        for position, (part, parameter) in enumerate(zip(vector, parameters, strict=True)):
            if part is not None:
                flat = dense(part).detach().reshape(-1)
                total = found.setdefault(flat.device, torch.zeros(BUCKETS, dtype=torch.float64, device=flat.device))
                own = torch.zeros_like(total)
                self._fold(flat, position, own)
                total += torch.roll(own, offset % BUCKETS)
            offset += parameter.numel()
        return sum((total.cpu() for total in found.values()), torch.zeros(BUCKETS, dtype=torch.float64))

    def _fold(self, flat: torch.Tensor, position: int, total: torch.Tensor) -> None:
        """Add the sketch of one tensor to ``total``."""
        signs = self._signs_of(flat, position)
        whole = flat.numel() // BUCKETS * BUCKETS
        size = block_size(flat.device)
        for start in range(0, whole, size):
            stop = min(start + size, whole)
            # A change of signs is exact in every dtype; only the sum needs more digits.
            total += (flat[start:stop] * signs[start:stop]).view(-1, BUCKETS).sum(0, dtype=torch.float64)
        rest = flat.numel() - whole
        if rest:
            total[:rest] += flat[whole:] * signs[whole:]

    def _signs_of(self, flat: torch.Tensor, position: int) -> torch.Tensor:
        key = position, flat.numel(), flat.device
        if key not in self._signs:
            generator = torch.Generator().manual_seed(position)
            drawn = torch.randint(0, 2, (flat.numel(),), dtype=torch.int8, generator=generator)
            self._signs[key] = (2 * drawn - 1).to(flat.device)
        return self._signs[key]
