"""The rows of data that reached a model, regardless of the order that they came in.

Two runs split one stream of data differently: into micro-batches, and into steps. Only the rows themselves are the
same. Each row of each tensor that a loss was computed from has a fingerprint, and a stretch of the stream is the
multiset of them, tensor by tensor.

Sequences are padded to the longest of their micro-batch, so that the split changes the rows too, at their ends. So a
fingerprint ignores the padding at the ends. A mask follows from the padding, and contains no information on the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

Column = tuple[int, str]
"""A tensor of the data: which of the tensors of its loss it is, and its dtype.

Not where its backward is: a loop may have a line for K = 1, and another for the rest.
"""


@dataclass(slots=True)
class Rows:
    """A multiset of rows. ``columns`` are the fingerprints of each tensor's rows, ``count`` how many samples there are.

    ``silent`` are the tensors that say nothing of the data wherever they were seen: masks, and numbers of the rows of
    their own micro-batch (labels of in-batch negatives, an order). ``counting`` says that one of them counts these rows
    from 0.
    """

    columns: dict[Column, Counter[bytes]] = field(default_factory=dict)
    silent: set[Column] = field(default_factory=set)
    count: int = 0
    counting: bool = False

    def add(self, more: Rows) -> None:
        """Take in more of them."""
        known = set(self.columns)
        for column, rows in more.columns.items():
            self.columns.setdefault(column, Counter()).update(rows)
        self.silent = (self.silent - (more.columns.keys() - more.silent)) | (more.silent - (known - self.silent))
        self.count += more.count
        self.counting = self.counting or more.counting

    @classmethod
    def together(cls, each: Iterable[Rows]) -> Rows:
        """All of them."""
        total = cls()
        for one in each:
            total.add(one)
        return total


class Relation(Enum):
    """The relation of one run's data to another's since they last stepped after the same rows."""

    SAME = "same"
    BEHIND = "behind"
    AHEAD = "ahead"
    OTHER = "other"


def relation(mine: Rows, theirs: Rows) -> Relation:
    """The relation of ``mine`` to ``theirs``; no rows at all are behind any.

    Where all tensors look like masks (few tokens of a small vocabulary do), they tell of the same rows if each of them
    is the same in both, and of nothing otherwise.
    """
    if not (mine.count and theirs.count):
        return Relation.AHEAD if mine.count else Relation.BEHIND if theirs.count else Relation.SAME
    shared = mine.columns.keys() & theirs.columns.keys() - (mine.silent & theirs.silent)
    if not shared and mine.columns == theirs.columns and mine.columns and not (mine.counting or theirs.counting):
        return Relation.SAME
    found = {_relation(mine.columns[column], theirs.columns[column]) for column in shared} - {Relation.SAME}
    if not shared or len(found) > 1:
        return Relation.OTHER
    return found.pop() if found else Relation.SAME


def _relation(own: Counter[bytes], other: Counter[bytes]) -> Relation:
    if own == other:
        return Relation.SAME
    return Relation.BEHIND if own <= other else Relation.AHEAD if own >= other else Relation.OTHER


@dataclass(slots=True)
class Alignment:
    """Two runs on one stream of data, since both last made a step after the same rows.

    A step that both make after the same rows, with no other step of either since the last such place, is one step on
    the same data. Where one of them has made others in between, they cut the stream at other places.
    """

    mine: Rows = field(default_factory=Rows)
    theirs: Rows = field(default_factory=Rows)
    my_steps: int = 0
    their_steps: int = 0

    def i_step(self, rows: Rows) -> None:
        """The one run has made a step, on these rows since its last."""
        self.mine.add(rows)
        self.my_steps += 1

    def they_step(self, rows: Rows) -> None:
        """The other has."""
        self.theirs.add(rows)
        self.their_steps += 1

    @property
    def relation(self) -> Relation:
        """The relation of the one to the other."""
        return relation(self.mine, self.theirs)

    @property
    def is_one_step(self) -> bool:
        """Whether each has made one step, and no more."""
        return self.my_steps == self.their_steps == 1
