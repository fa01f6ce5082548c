"""What the variables of a training loop may hold while its skeleton is interpreted.

Plain Python values (str, bool, None, list, tuple, dict) stand for themselves; numbers carry where they come from.
Everything that cannot be known is a `Symbol`, which remembers its name so that the same unknown is the same everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from typing import Any

from gradcheck_accum.ledger.events import Factor, Operation, Reduction
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.stated_names import is_name_of_steps, names_size, origin_of_computed
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.names import SETTINGS
from gradcheck_accum.lint.syntax import Operator

STEPS = "steps"
"""Tag of a number that is K, the accumulation steps."""
DERIVED = "derived"
"""Tag of a number that was computed from K."""
LENGTH = "length"
"""Tag of a number that counts the micro-batches of a pass over the data."""
TOTAL = "total"
"""Tag of a number that counts the micro-batches of a list that the source shows."""
POSITION = "position"
"""Tag of a number that goes along such a length, or was computed from one that does."""
UNITS = "units"
"""Tag of a number that counts the units of one micro-batch."""
WHOLE = "whole"
"""Tag of the size of a batch that was not cut out of another: no micro-batch's, where micro-batches are."""
ASSUMED = "assumed"
"""Tag of a length that the source does not show, and of what was computed from it."""


_NAME = "name of "
_LENGTH_OF = "length of "


def tag_of_name(name: str) -> str:
    """Tag of a number that was taken for a name whose number the source leaves open."""
    return f"{_NAME}{name}"


def tag_of_length(source: Any) -> str:
    """Tag of the length of what a loop may run over."""
    return f"{_LENGTH_OF}{source.name if isinstance(source, Symbol) else id(source)}"


@dataclass(frozen=True, slots=True)
class Num:
    """A known number; ``tags`` say what it was made from, ``origins`` by which names of K and constants of the source.

    Two numbers of the same origin are the same binding; two that are merely equal may be there for different things.
    """

    value: int | float | Fraction
    tags: frozenset[str] = frozenset()
    origins: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def names(self) -> set[str]:
        """The tags of the names that it was made from."""
        return {tag for tag in self.tags if tag.startswith(_NAME)}

    def derive(self, value: int | float | Fraction, *others: Num) -> Num:
        """The result of arithmetic on this number and ``others``."""
        tags = self.tags.union(*(other.tags for other in others))
        if STEPS in tags:
            tags = tags - {STEPS} | {DERIVED}
        return Num(value, tags, self.origins.union(*(other.origins for other in others)))

    def known_as(self, name: str) -> Num:
        """The same number once it is bound to ``name``.

        The name of K or of a size says what a number is, whatever it was made from; any other, that a constant of the
        source is no bare number.
        """
        says_what_it_is = is_name_of_steps(name) or names_size({name})
        return replace(self, origins=self.origins | {name}) if says_what_it_is or self.origins else self


def known_as(value: Any, name: str) -> Any:
    """A value that the source binds to ``name``, or reads by it: a number has all of its names."""
    return value.known_as(name) if isinstance(value, Num) else value


_LONGEST_ORIGIN = 200


def computed_from(left: Num, right: Num) -> frozenset[str]:
    """The origin of a number that was computed from two others: one of its own, and none of theirs.

    It has none where one of them has none: a counter, say, or a length.
    """
    known = bool(left.origins) and bool(right.origins)
    origin = origin_of_computed(left.origins | right.origins) if known else ""
    return frozenset({origin}) if 0 < len(origin) <= _LONGEST_ORIGIN else frozenset()


@dataclass(frozen=True, slots=True)
class Symbol:
    """Something unknown. ``name`` is its dotted name, or empty for an unnamed result of a call."""

    name: str = ""
    default: int | float | str | None = None
    """The number or the word that the source gives as this symbol's default, where it gives one."""
    other_names: frozenset[str] = field(default=frozenset(), compare=False)
    """By which names but its own it is set: those of an option's flags."""

    def member(self, name: str) -> Symbol:
        """The symbol of one of its attributes or items."""
        return Symbol(f"{self.name}.{name}" if self.name else "")

    def as_number(self, number: Num) -> Num:
        """What is known of it, once it is a number: with all the names that it has."""
        for name in (self.name.rpartition(".")[2], *sorted(self.other_names)):
            number = number.known_as(name)
        return number


@dataclass(frozen=True, slots=True)
class ByDefault(Symbol):
    """An open condition; whether it holds by default is ``holds``."""

    holds: bool = True


UNKNOWN = Symbol()
"""Something of which not even the name is known."""


@dataclass(frozen=True, slots=True)
class Scaled(Symbol):
    """Something unknown that was multiplied or divided: if it is a loss, nobody knows by what."""


SCALED = Scaled()


LARGEST = 2**53
"""Beyond this no number is followed."""
LONGEST_LIST = 10_000
"""Items beyond which no list is followed."""
_MOST_FACTORS = 64
_DEEPEST = 4
"""Lists in lists are looked into this far."""


def bounded(number: Num) -> Num | Symbol:
    """A number, or nothing known where it is beyond what a training loop counts or divides by."""
    value = number.value
    if isinstance(value, (int, float)):
        fits = -LARGEST <= value <= LARGEST
    else:
        fits = abs(value.numerator) <= LARGEST and value.denominator <= LARGEST
    return number if fits else UNKNOWN


@dataclass(frozen=True, slots=True)
class Reference:
    """An imported name: ``torch.nn.functional`` and the like."""

    path: str

    @property
    def tail(self) -> str:
        """The last part of the dotted path."""
        return self.path.rpartition(".")[2]


def as_setting(value: Any) -> Any:
    """What ``import config; config.K`` names, as the unknown that it is: a module's settings are as open as any."""
    is_setting = isinstance(value, Reference) and "." in value.path and not value.path.startswith("torch.")
    return Symbol(value.path) if is_setting else value


class Holds(Enum):
    """What data are."""

    VALUES = "values"
    PLACES = "the numbers of rows"
    MASK = "of each element of other data, whether it counts"
    CONSTANTS = "what the source writes, as much of it in every micro-batch"


@dataclass(frozen=True, slots=True)
class Data:
    """Tensors of input data, or a batch of them; ``rows`` is the leading dimension where the source shows it.

    ``counted`` is the micro-batch under way when data was added up to this one number, where it is one, and ``times``
    what that was multiplied by. ``made`` is the turn of a training loop in which random numbers were drawn for it, or
    for the rows that it takes. ``is_part`` says that it was cut out of other data, ``varies`` that it has as many
    elements as the data say (chosen by a mask, or padded to the longest), and ``ignored`` that some of them hold what
    losses leave out. ``sizes`` are its dimensions where it was given them, a negative one for what follows from others.
    ``drawn`` is the number of the micro-batch that it was drawn with, None where that is not known. ``is_tensor`` says
    that a call has made it: it is no batch of several tensors.
    """

    rows: int | None = None
    counted: int | None = None
    made: int | None = None
    is_part: bool = False
    holds: Holds = Holds.VALUES
    varies: bool = False
    ignored: bool = False
    times: Num | None = None
    sizes: tuple[Num, ...] = ()
    drawn: int | None = field(default=None, compare=False)
    is_tensor: bool = field(default=False, compare=False)

    def changed(self, rows: int | None = None) -> Data:
        """What an operation on each of its elements gives."""
        holds = Holds.VALUES if self.holds is Holds.PLACES else self.holds
        return replace(self, rows=rows, is_part=False, holds=holds, sizes=())


@dataclass(frozen=True, slots=True)
class Detached:
    """The flow of what has left its graph: the same numbers."""

    flow: Hashable


@dataclass(frozen=True, slots=True)
class Part:
    """One reduced loss inside a tensor, with the factors that it was multiplied by since.

    ``flow`` tells what was computed at one time from what was at another: parts with the same one share a graph.
    """

    name: str
    reduction: Reduction
    factors: tuple[Factor, ...] = ()
    micro_batch: int = -1
    flow: Hashable = field(default_factory=object, compare=False)
    assumed: bool = False
    """Whether the reduction is what such losses usually have, and not what the source shows."""
    given_divisor: bool = False
    """Whether the call that made it got something that it may have divided its losses by."""
    within: frozenset[int] = frozenset()
    """Those of the factors, by their place, that are other tensors of its micro-batch: what is yet to be reduced is
    their product."""
    leaves_out: bool = False
    """Whether as many units are in it as the data say: some are left out, or chosen (`torch_calls.masks`)."""
    partly: bool = False
    """Whether its units were reduced along a dimension, which leaves others."""

    @property
    def is_unreduced(self) -> bool:
        """Whether nothing shows yet that it is one number."""
        return self.assumed or self.partly

    def reduced(self, reduction: Reduction, *, partly: bool) -> Part:
        """This part after its units were averaged or summed.

        The mean of a product is a mean. The sum of quotients may be one too, over any number.
        """
        kept = [
            factor
            for place, factor in enumerate(self.factors)
            if place not in self.within or (reduction is Reduction.SUM and factor.operation is not Operation.MULTIPLY)
        ]
        return replace(self, reduction=reduction, factors=tuple(kept), assumed=False, within=frozenset(), partly=partly)

    @property
    def origin(self) -> Hashable:
        """The flow of the numbers, whether they have left their graph or not."""
        flow = self.flow
        while isinstance(flow, Detached):
            flow = flow.flow
        return flow


@dataclass(frozen=True, slots=True)
class Tensor:
    """The result of a computation: of which models (by root name), and of which losses it is the sum.

    ``summed_at`` is the place that added the losses of several micro-batches up.
    """

    parts: tuple[Part, ...]
    models: frozenset[str] = frozenset()
    grad_scaled: bool = False
    elementwise: bool = False
    summed_at: Location | None = field(default=None, compare=False)

    def element(self, key: Hashable) -> Tensor:
        """One of several things that a call gave together, as far as their flows tell them apart."""
        return replace(self, parts=tuple(replace(part, flow=(part.flow, key)) for part in self.parts))

    def scaled(self, factor: Factor) -> Tensor:
        """This tensor times a constant."""
        if any(len(part.factors) >= _MOST_FACTORS for part in self.parts):
            parts = tuple(replace(p, factors=(Factor(None),), within=frozenset()) for p in self.parts)
        else:
            parts = tuple(replace(p, factors=(*p.factors, factor)) for p in self.parts)
        return replace(self, parts=parts)

    def detached(self) -> Tensor:
        """The same numbers without their graph."""
        parts = tuple(replace(part, flow=Detached(part.flow)) for part in self.parts)
        return replace(self, parts=parts, models=frozenset())

    @property
    def is_located(self) -> bool:
        """Whether it is known where the last factor of every part was applied."""
        return all(not part.factors or part.factors[-1].where is not None for part in self.parts)

    def located(self, where: Location) -> Tensor:
        """This tensor with ``where`` as the place of the factors that have none yet."""
        parts = tuple(
            replace(part, factors=(*part.factors[:-1], replace(part.factors[-1], where=where)))
            if part.factors and part.factors[-1].where is None
            else part
            for part in self.parts
        )
        return replace(self, parts=parts)

    def times(self, factor: Factor, models: frozenset[str]) -> Tensor:
        """This tensor, of which nothing shows that it was reduced yet, times another one of its micro-batch."""
        parts = tuple(replace(part, within=part.within | {len(part.factors)}) for part in self.parts)
        return replace(self, parts=parts, models=self.models | models).scaled(factor)

    def reduced(self, reduction: Reduction, *, partly: bool = False) -> Tensor:
        """This tensor after its units were averaged or summed; ``partly`` says along a dimension."""
        parts = tuple(part.reduced(reduction, partly=partly) for part in self.parts)
        return replace(self, parts=parts, elementwise=False)


@dataclass(frozen=True, slots=True)
class Configured(Symbol):
    """What a call that was given K has made: if it computes losses, they may be scaled already.

    So may those of a definition that was too large to be read.

    ``whole`` says that it was given a multiple of K: if it yields micro-batches, they may be whole windows.
    """

    whole: bool = False


@dataclass(frozen=True, slots=True)
class Unwrapped(Symbol):
    """``model.module``: what DistributedDataParallel is wrapped around, which it does not see run."""

    source: str = ""


@dataclass(frozen=True, slots=True)
class Member(Symbol):
    """Something in a model that this file makes: as unknown as any, but for whose parameters it has, ``source``."""

    source: str = ""

    def member(self, name: str) -> Symbol:
        """A member of the member."""
        return Member(source=f"{self.source}.{name}")


@dataclass(frozen=True, slots=True)
class Got(Symbol):
    """What a turn of a training loop got from a call elsewhere that it gave nothing: its next data, it may be."""

    turn: int = field(default=0, compare=False)

    def member(self, name: str) -> Symbol:
        """One of several things that were got together."""
        return Got(f"{self.name}.{name}" if self.name else "", turn=self.turn)


@dataclass(frozen=True, slots=True)
class Samples(Symbol):
    """How many samples the data set ``source`` has, which the source does not show."""

    source: str = ""


@dataclass(frozen=True, slots=True)
class Repeated(Symbol):
    """``itertools.repeat(x)``: the same thing over and over, without end."""


@dataclass(frozen=True, slots=True)
class Computed(Symbol):
    """A setting computed from settings before any loop: one number, though not known which. ``name`` is its source."""

    op: Operator | None = None
    left: Any = None
    right: Any = None


def is_multiple_of_steps(value: Any) -> bool:
    """Whether a value is something times K, or may be."""
    if isinstance(value, Computed):
        return value.op is Operator.MULT and any(_comes_of_steps(side) for side in (value.left, value.right))
    return isinstance(value, Num) and DERIVED in value.tags and isinstance(value.value, int)


def _comes_of_steps(value: Any) -> bool:
    return is_multiple_of_steps(value) or (isinstance(value, Num) and bool(value.tags & {STEPS, DERIVED}))


@dataclass(slots=True, eq=False)
class Scheduler:
    """A learning rate scheduler, made before the micro-batch ``since``, for ``horizon`` moves where it says.

    ``optimizer`` is whose rate it moves, None where that is not known.
    """

    name: str
    since: int
    optimizer: Optimizer | None
    horizon: Any = None


@dataclass(frozen=True, slots=True)
class Figure(Symbol):
    """A number read off losses at ``read_at``, with all that they were multiplied by since."""

    parts: tuple[Part, ...] = ()
    read_at: Location | None = None


@dataclass(frozen=True, slots=True)
class LocalGradients:
    """A context in which the gradients of models stay local if it is ``enabled``; None where that is not known.

    ``made_here`` is False for one that was not seen to be made.
    """

    sources: frozenset[str]
    enabled: bool | None
    made_here: bool = True


@dataclass(slots=True, eq=False)
class Average:
    """A moving average of a model's weights, of a kind that a library has; made before the micro-batch ``since``.

    ``sources`` are the root names of the models whose weights it takes in, None where they are not known.
    """

    kind: str
    name: str
    since: int
    sources: frozenset[str] | None


@dataclass(slots=True, eq=False)
class Partial:
    """``functools.partial``: a callable with some of its arguments."""

    callee: Any
    args: list[Any]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Criterion:
    """A loss module whose reduction the source shows."""

    name: str
    reduction: str | None
    leaves_out: bool = False
    """Whether it was given the value of targets that it leaves out."""


@dataclass(slots=True, eq=False)
class Model:
    """A network made in this file; ``name`` tells it from others, and ``cls`` is its class if that is in the file."""

    name: str
    cls: Class | None = None
    instance: Instance | None = None
    """The object that its class's own methods are carried out on, once one has been."""


@dataclass(slots=True, eq=False)
class Optimizer:
    """An optimizer; ``sources`` are the root names of the models whose parameters it updates, where known.

    ``engine`` is what steps and clears it, where that is not the loop.
    """

    name: str
    sources: frozenset[str] | None = None
    engine: Engine | None = None

    def may_update(self, models: frozenset[str]) -> bool:
        """Whether any of ``models``, by their names, may be one whose parameters it updates."""
        return not (self.sources and models) or any(reaches(model, own) for model in models for own in self.sources)


@dataclass(slots=True, eq=False)
class Engine:
    """DeepSpeed's engine around a model: it divides losses by ``divisor``, its accumulation steps.

    ``counted`` are the micro-batches that it was stepped after, ``pending`` the backwards since.
    """

    name: str
    divisor: Any
    optimizer: Optimizer
    counted: int = 0
    pending: int = 0

    @property
    def is_used(self) -> bool:
        """Whether it has seen any gradients yet."""
        return bool(self.counted or self.pending)


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


@dataclass(frozen=True, slots=True)
class Framework:
    """An object whose ``backward`` divides the loss by ``divisor`` and is PyTorch's own otherwise.

    ``name`` is what the file calls it, where that is all that is known of it.
    """

    divisor: Any
    name: str = ""


@dataclass(slots=True, eq=False)
class Loader:
    """A source of micro-batches. ``length`` is None where the source does not show it.

    ``dataset`` is the name of the data set that they are cut from, where that is all that is known of it.
    ``generated`` says that a generator of the file yields them, and may yield a number beside each; ``whole`` that it
    was given a multiple of K, so that they may be whole windows. ``last_rows`` are those of the last micro-batch.
    ``carry_out`` runs the generator and gives what it yields.
    """

    length: int | None = None
    rows: int | None = None
    generated: bool = False
    whole: bool = False
    last_rows: int | None = None
    carry_out: Callable[[], list[Any]] | None = None
    dataset: str = ""


@dataclass(slots=True, eq=False)
class Chunks:
    """A batch split into ``count`` micro-batches, each of ``rows`` rows where the source shows that they are alike.

    ``assumed`` says that the source does not show how many.
    """

    count: int
    rows: int | None = None
    assumed: bool = False

    @property
    def piece(self) -> Data:
        """One of the micro-batches."""
        return Data(self.rows, is_part=True)

    def batches(self) -> list[Data]:
        """The micro-batches in order."""
        return [self.piece] * self.count


@dataclass(slots=True, eq=False)
class Stream:
    """An iterator: ``next`` draws from it."""

    items: Iterator[Any]

    @classmethod
    def endless(cls) -> Stream:
        """Batches for ever."""
        return cls(itertools.repeat(Data()))

    @property
    def is_endless(self) -> bool:
        """Whether it never ends."""
        return isinstance(self.items, itertools.repeat)


@dataclass(slots=True, eq=False)
class Function:
    """A function of this file, with the scope that it closes over and the object that it is bound to."""

    node: syntax.FunctionDef | syntax.Lambda
    scope: Scope
    owner: Instance | None = None


@dataclass(slots=True, eq=False)
class Driver:
    """An object that calls a function of this file with every batch of data (Ignite's Engine)."""

    function: Function


@dataclass(slots=True, eq=False)
class Class:
    """A class of this file."""

    node: syntax.ClassDef
    scope: Scope
    methods: dict[str, syntax.FunctionDef] = field(default_factory=dict)
    complete: bool = True
    """Whether every base class is in this file, so that a missing method does not exist."""
    is_model: bool = False
    origins: dict[str, Scope] = field(default_factory=dict)
    """The scopes of the methods that another class of another module has defined."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """What was assigned to the class since."""

    def bound(self, name: str, instance: Instance) -> Function | None:
        """A method of this class, of an object of it."""
        node = self.methods.get(name)
        return None if node is None else Function(node, self.origins.get(name, self.scope), instance)


@dataclass(slots=True, eq=False)
class Instance:
    """An object of a class of this file."""

    cls: Class
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Scope:
    """The names of one function, with the scope around it."""

    names: dict[str, Any] = field(default_factory=dict)
    outer: Scope | None = None
    shared: set[str] = field(default_factory=set)
    """Names declared ``global`` or ``nonlocal`` here."""

    def find(self, name: str) -> Scope | None:
        """The scope that holds ``name``, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and name not in scope.shared:
                return scope
            scope = scope.outer
        return None

    def assign(self, name: str, value: Any) -> None:
        """Bind ``name`` here, or where ``global`` or ``nonlocal`` says."""
        holder = self.outer.find(name) if name in self.shared and self.outer else self
        (holder or self).names[name] = value


def _held(value: Any, depth: int = 0) -> Iterator[Any]:
    """A value, or what lists, tuples and dicts hold, as far as it is worth looking."""
    if isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        for item in itertools.islice(items, 8) if depth < _DEEPEST else ():
            yield from _held(item, depth + 1)
    else:
        yield value


def key_of(value: Any, text: str) -> str | Num | Symbol:
    """What a dictionary keeps something by: what nobody knows is the same key where the source, ``text``, is the same.

    So nothing that is put into a dictionary is lost, and one item stands for all that one line puts there.
    """
    if isinstance(value, (str, Num)) or is_named(value):
        return value  # type: ignore[no-any-return]
    return Symbol(text)


def shows_its_keys(items: dict[Any, Any]) -> bool:
    """Whether all keys of a dictionary are in the source, so that no other is in it."""
    return all(isinstance(key, str) for key in items)


def is_data(value: Any) -> bool:
    """Whether a value is, or holds, input data."""
    return any(isinstance(item, Data) for item in _held(value))


def acts_on_gradients(value: Any) -> bool:
    """Whether a value is, or holds, something that makes gradients or uses them."""
    kinds = (Tensor, Model, Optimizer, Engine, Parameters, Gradient, Instance, Function)
    return any(isinstance(item, kinds) for item in _held(value))


def rows_in(value: Any) -> int | None:
    """The leading dimension of the input data that a value is or holds, where the source shows it."""
    return next((item.rows for item in _held(value) if isinstance(item, Data)), None)


def is_named(value: Any) -> bool:
    """Whether a value is an unknown with a name, which always stands for the same thing."""
    return isinstance(value, Symbol) and bool(value.name)


def is_settled(value: Any) -> bool:
    """Whether a value is a number or a name that always stands for the same thing."""
    return isinstance(value, Num) or is_named(value)


def is_setting(value: Any) -> bool:
    """Whether a value is an unknown that a plain dotted name stands for, and not the result of a call."""
    return isinstance(value, Symbol) and value.name.replace(".", "_").isidentifier()


def models_in(value: Any) -> frozenset[str]:
    """The models whose output flows into a value."""
    return frozenset().union(*(item.models for item in _held(value) if isinstance(item, Tensor)))


def drawn_with(value: Any, micro_batch: int) -> Any:
    """What a loop or an iterator gives with a new micro-batch: the data in it are that one's."""
    match value:
        case Data():
            return replace(value, drawn=micro_batch)
        case tuple() if not hasattr(value, "_fields"):
            return tuple(drawn_with(item, micro_batch) for item in value)
    return value


def is_drawn_with(value: Any, micro_batch: int) -> bool:
    """Whether the data in a value are all those of one micro-batch, as far as it is known, and it holds some."""
    data = [item for item in _held(value) if isinstance(item, Data)]
    return bool(data) and all(item.drawn == micro_batch for item in data)


def carries_steps(value: Any) -> bool:
    """Whether a value could tell a function what K is: K itself, or an object of settings."""
    return any(_tells_steps(item) for item in _held(value) if not isinstance(value, dict))


def _tells_steps(value: Any) -> bool:
    if isinstance(value, Num):
        return bool(value.tags & {STEPS, DERIVED})
    if isinstance(value, Instance):
        return not value.cls.is_model
    return isinstance(value, Symbol) and bool(SETTINGS.fits(value.name.rpartition(".")[2]))
