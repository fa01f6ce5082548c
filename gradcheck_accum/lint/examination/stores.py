"""Which gradients belong together: the stores of a loop (`gradcheck_accum.ledger.events`), known at its end only.

If one optimizer steps there is one store, unless some of its models are cleared alone: then each of them is one. If
several step, each owns the models whose parameters it was given. Those that work one after the other need own nothing
apart: each has its own phase of the training.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gradcheck_accum.ledger.events import Backward, Cause, Event, Opaque, Reason, Step, Trace, ZeroGrad
from gradcheck_accum.ledger.folding import fold
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.windows import Fate
from gradcheck_accum.lint.state.recorder import Recorded
from gradcheck_accum.lint.state.values import Optimizer, is_member, is_part, reaches, whole_of

_ONE_STORE = "the model"
_WRAPPED = ".module"
"""What a wrapper for several devices calls the whole of the model in it."""
_OF_ALL = frozenset({"zero", "opaque"})
"""What happens to the gradients of all phases, whichever is under way."""


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of each optimizer that steps, by its identity.

    ``is_team`` says that it is not known whose parameters each of them owns, but that all of them act together.
    ``by_phase`` has the store of each thing that was done while only one of them was at work, by its identity.
    ``owned`` are the models that they were given the parameters of, as far as that is known.
    """

    by_optimizer: Mapping[int, frozenset[str]]
    is_team: bool
    by_phase: Mapping[int, frozenset[str]] = field(default_factory=dict)
    owned: frozenset[str] = frozenset()

    @classmethod
    def of(cls, record: list[Recorded]) -> Stores:
        """Those of the optimizers that step in a record."""
        owners = {id(one.owner): one.owner for one in record if one.kind == "step"}
        optimizers = [owner for owner in owners.values() if isinstance(owner, Optimizer)]
        stores = _of_the_parts(record, optimizers) or _of_each(optimizers)
        is_team = not stores and bool(optimizers)
        if is_team:
            stores = _of_a_team(record, optimizers)
        elif not (_tells_members_apart(record, stores) or _step_together(record, optimizers)):
            stores = dict.fromkeys(stores, frozenset[str]())
        phases = _phases(record) if any(not own for own in stores.values()) else {}
        owned = frozenset[str]().union(*(optimizer.sources or () for optimizer in optimizers))
        if phases:
            stores, is_team = {id(one): frozenset({one.name}) for one in optimizers}, False
        return cls(stores, is_team, phases, owned)

    @property
    def everything(self) -> frozenset[str]:
        """All stores."""
        return frozenset().union(*self.by_optimizer.values()) if self.by_optimizer else frozenset({_ONE_STORE})

    def reached_by(self, one: Recorded, everything: frozenset[str]) -> frozenset[str]:
        """The stores, of all, that something which was done reaches."""
        owner = one.owner
        if isinstance(owner, Optimizer):
            return self.by_optimizer.get(id(owner), frozenset())
        if self.by_phase:
            return self.by_phase.get(id(one), everything)
        if len(everything) <= 1 or owner is None or self.is_team:
            return everything
        return _reached(everything, owner)

    def named(self, models: frozenset[str]) -> frozenset[str]:
        """The stores of these models, where it is known whose each one is."""
        return frozenset() if self.is_team or self.by_phase else _reached(self.everything, models)


def _reached(stores: frozenset[str], sources: frozenset[str]) -> frozenset[str]:
    """Those of the stores that what happens to the sources happens to."""
    return frozenset(store for store in stores if any(reaches(source, store) for source in sources))


def _of_the_parts(record: list[Recorded], optimizers: list[Optimizer]) -> dict[int, frozenset[str]]:
    """The models of the only optimizer that steps, where some of them are cleared alone; nothing elsewhere."""
    own = optimizers[0].sources if len(optimizers) == 1 else None
    cleared = [one.owner for one in record if one.kind == "zero" and isinstance(one.owner, frozenset)]
    alone = own and any(_reached(own, owner) not in (frozenset(), own) for owner in cleared)
    return {id(optimizers[0]): own} if own and alone else {}


def _of_each(optimizers: list[Optimizer]) -> dict[int, frozenset[str]]:
    """The stores of each optimizer that steps, by its identity; none where it is not known whose it owns."""
    if len(optimizers) <= 1:
        return {id(optimizer): frozenset({_ONE_STORE}) for optimizer in optimizers}
    if not all(optimizer.sources for optimizer in optimizers):
        return {}
    every = frozenset().union(*(optimizer.sources or frozenset() for optimizer in optimizers))
    # Who owns a model owns every part of it.
    return {
        id(optimizer): frozenset(s for s in every if any(is_part(s, own) for own in optimizer.sources or ()))
        for optimizer in optimizers
    }


def _tells_members_apart(record: list[Recorded], stores: Mapping[int, frozenset[str]]) -> bool:
    """Whether every loss shows which of the stores it reaches.

    One of a whole model does not, where its members are different optimizers': it may have run only some of them. If
    those always step together, it may be taken to have run all.
    """
    models = {m for one in record if one.kind == "backward" and isinstance(one.owner, frozenset) for m in one.owner}
    owners = (sum(any(is_member(s, model) for s in own) for own in stores.values()) for model in models)
    return all(count <= 1 for count in owners)


def _of_a_team(record: list[Recorded], optimizers: list[Optimizer]) -> dict[int, frozenset[str]]:
    """The same if it is unknown whose parameters each owns: only for optimizers that always act together.

    If all or none step between any two backwards, and nothing clears gradients but them and one model that all losses
    flow through, every optimizer's parameters have the same history, whoever owns them. Each then has its own store.
    """
    everyone = {id(optimizer) for optimizer in optimizers}
    clears = [one.owner for one in record if one.kind == "zero"]
    others = {owner for owner in clears if isinstance(owner, frozenset)}
    of_all = len(others) <= 1 and all(_flow_through_all(record, model) for model in others)
    known = all(isinstance(owner, frozenset) or id(owner) in everyone for owner in clears)
    if _step_together(record, optimizers) and clears and known and of_all:
        return {id(optimizer): frozenset({optimizer.name}) for optimizer in optimizers}
    return {id(optimizer): frozenset() for optimizer in optimizers}


def _flow_through_all(record: list[Recorded], model: frozenset[str]) -> bool:
    """Whether every loss of a record flows through a model, as far as it is seen what each flows through."""
    losses = (one.owner for one in record if one.kind == "backward")
    return all(isinstance(owner, frozenset) and model <= owner for owner in losses)


def _step_together(record: list[Recorded], optimizers: list[Optimizer]) -> bool:
    """Whether all optimizers step between any two backwards, or none does."""
    everyone = {id(optimizer) for optimizer in optimizers}
    stepped: set[int] = set()
    for one in record:
        if one.kind == "backward":
            if stepped not in (set(), everyone):
                return False
            stepped = set()
        elif one.kind == "step":
            stepped.add(id(one.owner))
    return stepped in (set(), everyone)


def _phases(record: list[Recorded]) -> dict[int, frozenset[str]]:
    """The store of each thing that was done, by its identity, if every optimizer finishes before the next one begins.

    Each is then at work alone, and the gradients of that time are its own. Nothing where one comes back, or has made a
    single step: whose turn it is next is not known then. What is left over after the last step of a phase is
    distinguished from the next phase by its pass over the data and its line.
    """
    turns = [owner for owner, _ in itertools.groupby(_steppers(record))]
    steps = Counter(_steppers(record))
    if len(turns) != len(steps) or min(steps.values(), default=0) < 2:
        return {}
    last = {
        one.owner.name: i for i, one in enumerate(record) if isinstance(one.owner, Optimizer) and one.kind == "step"
    }
    following = iter(_steppers(record))
    at_work = next(following)
    of_pass: dict[tuple[int | None, Location], str] = {}
    found: dict[int, frozenset[str]] = {}
    for i, one in enumerate(record):
        if one.kind == "step":
            at_work = next(following, at_work)
        elif one.kind == "backward":
            name = of_pass.setdefault((one.details["epoch"], one.where), at_work)
            if name != at_work and i < last[name]:
                return {}
            found[id(one)] = frozenset({name})
        elif one.kind not in _OF_ALL:
            found[id(one)] = frozenset({at_work})
    return found if set(of_pass.values()) == set(steps) else {}


def _steppers(record: list[Recorded]) -> list[str]:
    """The names of the optimizers that step, one for each step."""
    return [one.owner.name for one in record if one.kind == "step" and isinstance(one.owner, Optimizer)]


def is_a_part(one: Recorded, everything: frozenset[str], owned: frozenset[str]) -> bool:
    """Whether something was done to some parameters of a model of which no optimizer owns just those.

    ``owned`` are the models whose parameters the optimizers were given: of one of them that may be a member, which they
    own together with all others.
    """
    owner = one.owner if isinstance(one.owner, frozenset) else frozenset()
    others = [source for source in owner if source not in everything and source.removesuffix(_WRAPPED) not in owned]
    return any(whole_of(source) != source or any(is_member(source, model) for model in owned) for source in others)


def doubt(events: list[Event], stores: Stores) -> Reason | None:
    """Why nothing of this record can be trusted, or nothing.

    A loop that does something unknown in one turn may do it in the others too; only what is unknown after the
    last step leaves the windows before it as they are. That the length of windows is unknown is the least of it.
    """
    filled = frozenset[str]().union(*(event.stores for event in events if isinstance(event, Backward)))
    if events and (not filled or any(owned and filled.isdisjoint(owned) for owned in stores.by_optimizer.values())):
        # Whoever makes the gradients, or those of one of the optimizers, is not in sight.
        return Reason("where the gradients of a step come from")
    if any(not owned for owned in stores.by_optimizer.values()):
        return Reason("whose gradients an optimizer owns")
    last = max((i for i, event in enumerate(events) if isinstance(event, Step)), default=-1)
    reasons = [event.reason for event in events[:last] if isinstance(event, Opaque)]
    return min(reasons, key=lambda reason: reason.cause is Cause.LENGTH, default=None)


def stained(events: list[Event]) -> frozenset[str]:
    """The stores in which another optimizer's loss has left gradients, unless the ledger tells them from their own."""
    found = _stained(events)
    return found and found - _spilled(events)


def _stained(events: list[Event]) -> frozenset[str]:
    """The stores in which another optimizer's loss leaves gradients that the next step of their own uses.

    A GAN's generator loss flows through the discriminator too; where that is cleared before, and not after, its next
    window begins with what the generator's loss has left. Unless the ledger tells it from the window's own, none of its
    entries counts what it seems to.
    """
    stained: set[str] = set()
    used: dict[str, set[int]] = {}
    entries: dict[str, list[Backward]] = {}
    for event in events:
        match event:
            case Backward():
                for store in event.stores:
                    entries.setdefault(store, []).append(event)
            case ZeroGrad():
                entries = {store: new for store, new in entries.items() if store not in event.stores}
            case Step():
                for store in event.stores:
                    new = entries.pop(store, [])
                    before = used.get(store, set())
                    if any(e.micro_batch in before and not e.stores <= event.stores for e in new):
                        stained.add(store)
                    used[store] = {e.micro_batch for e in new}
    return frozenset(stained)


def _spilled(events: list[Event]) -> frozenset[str]:
    """The stores in which the ledger itself takes what another's loss has left for stale: these are no secret."""
    ledger = fold(Trace(tuple(events)))
    return frozenset(window.store for window in ledger.windows if window.with_fate(Fate.STALE))
