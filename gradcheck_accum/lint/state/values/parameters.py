"""Parameters and their gradients, by the models that they are of: the sources that two of them may share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_CHOSEN = " where "


def whole_of(source: str) -> str:
    """The model of a source, without what chooses some of its parameters."""
    return source.partition(_CHOSEN)[0]


def is_member(source: str, other: str) -> bool:
    """Whether a source is a member of another one (``model.encoder``), or parameters of such a member."""
    return whole_of(source).startswith(f"{other}.")


def is_part(source: str, other: str) -> bool:
    """Whether a source is another one, or a part of it: a member, or those parameters that a condition chooses."""
    return other in (source, whole_of(source)) or is_member(source, other)


def reaches(source: str, other: str) -> bool:
    """Whether what happens to a source happens to another, or to some of it.

    What happens to a model happens to every part of it, and what happens to a part happens to the model. Two parts of
    one model are as good as two models.
    """
    return is_part(source, other) or is_part(other, source)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of the models named in ``sources``; None where it is not known whose.

    A source is a model, or those of its parameters that a condition chooses: neither all of them nor none.
    """

    sources: frozenset[str] | None

    def chosen(self, condition: str) -> Parameters:
        """Those of which a condition holds."""
        return self if self.sources is None else Parameters(frozenset(f"{s}{_CHOSEN}{condition}" for s in self.sources))


def all_parameters(items: Sequence[Any]) -> bool:
    """Whether items are parameters of models, all of them."""
    return bool(items) and all(isinstance(item, Parameters) for item in items)


def united(parameters: Iterable[Parameters]) -> Parameters:
    """The parameters of several models as one."""
    sources = [one.sources for one in parameters]
    return Parameters(None if None in sources else frozenset().union(*(s for s in sources if s is not None)))


class Group(dict[str, Any]):
    """One of the parameter groups of the optimizer that is named ``owner``."""

    def __init__(self, owner: str, sources: frozenset[str] | None) -> None:
        super().__init__(params=Parameters(sources))
        self.owner = owner


@dataclass(frozen=True, slots=True)
class Gradient:
    """The ``.grad`` of parameters."""

    sources: frozenset[str] | None
