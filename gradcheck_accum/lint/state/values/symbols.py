"""What the source leaves open: an unknown remembers its name, so that the same unknown is the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradcheck_accum.ledger.events import Factor
from gradcheck_accum.lint.state.values.numbers import DERIVED, STEPS, Num
from gradcheck_accum.lint.syntax import Operator


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


@dataclass(frozen=True, slots=True)
class Negation(Symbol):
    """``not x`` of an open condition with a name: the same question as ``x``, which is called ``of``."""

    of: str = ""


UNKNOWN = Symbol()
"""Something of which not even the name is known."""

WITHOUT_END = Symbol()
"""The end of a count that has none, to be compared by identity."""

INFINITE = Symbol()
"""A number that no other reaches, to be compared by identity."""


@dataclass(frozen=True, slots=True)
class Word(Symbol):
    """A text that the source does not show: it divides nothing, and is no K."""

    def member(self, name: str) -> Word:
        """A part of it."""
        return self


@dataclass(frozen=True, slots=True)
class Chance(Symbol):
    """A generator of random numbers: it holds no data, and what is drawn from it is as much as is asked for."""


@dataclass(frozen=True, slots=True)
class Extent(Symbol):
    """The size of data along another dimension than the first: of rows, it counts none."""


@dataclass(frozen=True, slots=True)
class HowGreat(Symbol):
    """Whether a micro-batch's loss is greater, or smaller, than a number: its data decide on that."""


@dataclass(frozen=True, slots=True)
class HowMany(Symbol):
    """The number of things that a call gave for one micro-batch: the terms of its objective, where they are losses."""


@dataclass(frozen=True, slots=True)
class Measured(Symbol):
    """A number that was computed from gradients: how great they are, and what follows from that."""

    def member(self, name: str) -> Measured:
        """A part of it, or the same number elsewhere."""
        return self


MEASURED = Measured()


@dataclass(frozen=True, slots=True)
class Multiplied(Symbol):
    """What multiplying the gradients of models, or of some of their parameters, gives: another tensor."""

    sources: frozenset[str] | None = None
    factors: tuple[Factor, ...] = field(default=(Factor(None),), compare=False)


@dataclass(frozen=True, slots=True)
class Scaled(Symbol):
    """Something unknown that was multiplied or divided: if it is a loss, the factor is unknown."""


SCALED = Scaled()


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

    def member(self, name: str) -> Unwrapped:
        """One of its parts, or of its methods, which runs as unseen."""
        return Unwrapped(f"{self.name}.{name}", source=self.source)


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


@dataclass(frozen=True, slots=True)
class Reference:
    """An imported name: ``torch.nn.functional`` and the like."""

    path: str

    @property
    def tail(self) -> str:
        """The last part of the dotted path."""
        return self.path.rpartition(".")[2]


def is_infinite(value: Any) -> bool:
    """Whether a value is infinity, as ``float("inf")`` or as a library's constant."""
    return value is INFINITE or (isinstance(value, Reference) and value.tail in ("inf", "Inf", "infty"))


def as_setting(value: Any) -> Any:
    """What ``import config; config.K`` names, as the unknown that it is: a module's settings are as open as any."""
    is_setting = isinstance(value, Reference) and "." in value.path and not value.path.startswith("torch.")
    return Symbol(value.path) if is_setting else value


_LENGTH_OF = "length of "


def tag_of_length(source: Any) -> str:
    """Tag of the length of what a loop may run over."""
    return f"{_LENGTH_OF}{source.name if isinstance(source, Symbol) else id(source)}"


LARGEST = 2**53
"""Beyond this no number is followed."""
LONGEST_LIST = 10_000
"""Items beyond which no list is followed."""


def bounded(number: Num) -> Num | Symbol:
    """A number, or nothing known where it is beyond what a training loop counts or divides by."""
    value = number.value
    if isinstance(value, (int, float)):
        fits = -LARGEST <= value <= LARGEST
    else:
        fits = abs(value.numerator) <= LARGEST and value.denominator <= LARGEST
    return number if fits else UNKNOWN


def is_named(value: Any) -> bool:
    """Whether a value is an unknown with a name, which always stands for the same thing."""
    return isinstance(value, Symbol) and bool(value.name)


def negated(value: Any) -> Symbol:
    """What ``not`` makes of a value of which it is not known whether it holds."""
    if isinstance(value, Negation):
        return Symbol(value.of)
    return Negation(of=value.name) if is_named(value) else UNKNOWN


def is_settled(value: Any) -> bool:
    """Whether a value is a number or a name that always stands for the same thing."""
    return isinstance(value, Num) or is_named(value)


def is_setting(value: Any) -> bool:
    """Whether a value is an unknown that a plain dotted name stands for, and not the result of a call."""
    return isinstance(value, Symbol) and value.name.replace(".", "_").isidentifier()


def is_fixed(value: Any) -> bool:
    """Whether a value is a setting, the size of a data set, or computed from such, wherever it is read."""
    if isinstance(value, Computed):
        return is_fixed(value.left) and is_fixed(value.right)
    if isinstance(value, Num):
        return not value.tags
    of_a_result = type(value) is Symbol and value.name.rpartition(")")[2].startswith(".")
    return of_a_result or is_setting(value) or isinstance(value, Samples)


def is_option(value: Any) -> bool:
    """Whether a value is an unknown option of a command line, as `lint.interpreter.argument_parsers` calls it."""
    holder, _, name = value.name.rpartition(".") if isinstance(value, Symbol) else ("", "", "")
    return name.isidentifier() and holder.endswith((".parse_args()", ".parse_known_args()"))


def is_flag(name: str) -> bool:
    """Whether what a question asks is a setting that is on or off, by its name alone."""
    return is_setting(Symbol(name)) or is_option(Symbol(name))


def key_of(value: Any, text: str) -> str | Num | Symbol:
    """What a dictionary keeps something by: unknown keys are equal if their source, ``text``, is.

    So nothing that is put into a dictionary is lost, and one item stands for all that one line puts there.
    """
    if isinstance(value, (str, Num)) or is_named(value):
        return value  # type: ignore[no-any-return]
    return Symbol(text)


def shows_its_keys(items: dict[Any, Any]) -> bool:
    """Whether all keys of a dictionary are in the source, so that no other is in it."""
    return all(isinstance(key, str) for key in items)
