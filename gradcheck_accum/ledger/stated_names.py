"""The names by which training code states K, the size of a batch, and the length of a schedule."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

NAMES_OF_STEPS = (
    "accumulation_steps",
    "gradient_accumulation_steps",
    "grad_accumulation_steps",
    "grad_accum_steps",
    "accum_steps",
    "accumulate_grad_batches",
    "accum_iter",
    "grad_accum",
    "accumulation",
    "grad_acc_steps",
    "acc_steps",
    "update_freq",
    "iter_size",
    "K",
)
"""Names of arguments that are K in every loop."""

NAME_OF_LENGTH = "num_training_steps"
"""The name of a LambdaLR function's number of scheduler steps, as Transformers has it."""

NAMES_THAT_MAY_BE_STEPS = ("steps", "k")
"""Names of arguments that are K in some loops, and another number in others."""

NAME_OF_SIZE = "batch_size"
"""The origin of a batch's size where it has no name of its own: ``len(x)``."""

NAMES_OF_SIZE = (NAME_OF_SIZE, "bs", "bsz", "micro_batch_size", "per_device_train_batch_size", "train_batch_size")
"""Names of a batch's size."""

LETTER_OF_SIZE = "B"
"""The letter for it, in upper case only."""

DATA = "data"
"""The origin of a number that is a tensor: from the data, or computed from it."""

WHAT_REMAINS = "what remains"
"""The origin of a number that is bounded by what remains of the data (``min(2, len(loader) - i)``): it counts that."""

LOSSES = "how many losses there are"
"""The origin of the length of a list that holds losses: what is trained on, and no data."""

PUT_IN = "put into .grad"
"""The origin of a number that returned gradients were multiplied by when the loop put them into ``.grad`` itself."""

_LENGTH = "length of "
"""The beginning of the origin of a number that is the length of a list."""

_EXTENT = "extent of "
"""The beginning of the origin of a number that is the size of a tensor along another dimension than its first."""

_TOTAL = "total over "
"""The beginning of the origin of a number that was summed over the items of a list."""

_PARAMETER = "parameter"
"""The beginning of the origin of a number that is written out in a call, for a parameter of this name."""

_COMPUTED = "of "
"""The beginning of the origin of a number that is computed from others."""

_ACCUMULATION = frozenset({"accum", "accumulate", "accumulation"})
_OF_WHAT = frozenset({"grad", "grads", "gradient", "gradients"})
_HOW_MANY = frozenset(
    {"n", "num", "number", "of", "every", "factor", "freq", "times", "step", "steps", "iter", "iters", "batches"}
)
"""The words that a name of K may consist of: accumulation, of what, and how many. With others it is another number."""

_FOLDED = frozenset(name.casefold() for name in NAMES_OF_STEPS if len(name) > 1)
_LETTERS = frozenset(name for name in NAMES_OF_STEPS if len(name) == 1)


_WORD_BOUNDARY = re.compile(r"_+|(?<=[a-z])(?=[A-Z])")


@lru_cache(maxsize=4096)
def is_name_of_steps(name: str) -> bool:
    """Whether this name means K in every loop, regardless of case, except for single letters."""
    if name in _LETTERS or name.casefold() in _FOLDED:
        return True
    words = {word.casefold() for word in _WORD_BOUNDARY.split(name) if word}
    return bool(words & _ACCUMULATION) and words <= _ACCUMULATION | _OF_WHAT | _HOW_MANY


def names_of_flags(flags: Iterable[str]) -> frozenset[str]:
    """The names that an option has from its flags: ``--grad-accum-steps`` names it, whatever its ``dest`` is."""
    return frozenset(flag.lstrip("-").replace("-", "_") for flag in flags if flag.startswith("--"))


def names_steps(origins: Iterable[str]) -> bool:
    """Whether one of the names of a number is K's."""
    return any(map(is_name_of_steps, origins))


def names_size(origins: Iterable[str]) -> bool:
    """Whether one of the names of a number is that of a batch's size."""
    return any(origin == LETTER_OF_SIZE or origin.casefold() in NAMES_OF_SIZE for origin in origins)


def is_place(origin: str) -> bool:
    """Whether an origin is the place of a constant in the source, and not a name."""
    return origin.rpartition(":")[2].isdigit() and not origin.startswith((_COMPUTED, _LENGTH, _EXTENT, _TOTAL))


def origin_of_computed(origins: Iterable[str]) -> str:
    """The origin of a number that is computed from numbers of ``origins``."""
    return _COMPUTED + " ".join(sorted(origins))


def is_computed(origin: str) -> bool:
    """Whether an origin is that of a number which is computed from others that the source shows."""
    return origin.startswith(_COMPUTED)


def parts_of_computed(origins: Iterable[str]) -> frozenset[str]:
    """The origins of the numbers that one of ``origins`` is computed from; none if it is not."""
    return frozenset(part for one in origins if is_computed(one) for part in one.removeprefix(_COMPUTED).split(" "))


def origin_of_length(name: str) -> str:
    """The origin of a number that is the length of the list which is known by ``name``."""
    return _LENGTH + name


def is_length(origin: str) -> bool:
    """Whether an origin is that of the length of a list."""
    return origin.startswith(_LENGTH)


def origin_of_extent(name: str) -> str:
    """The origin of the size, along another dimension than its first, that is read as ``name``."""
    return _EXTENT + name


def is_extent(origin: str) -> bool:
    """Whether an origin is that of the size of a tensor along another dimension than its first."""
    return origin.startswith(_EXTENT)


def origin_of_total(length: str) -> str:
    """The origin of a number that was summed over the items of the list whose length has the origin ``length``."""
    return _TOTAL + length


def is_total(origin: str) -> bool:
    """Whether an origin is that of a number which was summed over the items of a list."""
    return origin.startswith(_TOTAL)


def name_of_parameter(name: str, given: Collection[str]) -> str:
    """The origin that a number of origins ``given`` has from the parameter which it was passed for.

    The name of K or of a size says what a number is. Any other only says what the function calls a number that the call
    writes out.
    """
    says_what_it_is = is_name_of_steps(name) or names_size({name})
    return name if says_what_it_is or not is_written_out(given) else f"{_PARAMETER} {name}"


def name_in(origin: str) -> str:
    """The name in an origin that is one."""
    return origin.removeprefix(f"{_PARAMETER} ")


def is_written_out(origins: Iterable[str]) -> bool:
    """Whether a number is written out where it is used, or in the call that passes it to a function which uses it."""
    return is_literal([origin for origin in origins if not origin.startswith(f"{_PARAMETER} ")])


def is_literal(origins: Collection[str]) -> bool:
    """Whether a number is written out where it is used, and has no name."""
    return bool(origins) and all(map(is_place, origins))


def stated_steps(arguments: Mapping[str, object]) -> int | None:
    """K from the keyword arguments of a call, None where none of them is K."""
    values = (arguments[name] for name in NAMES_OF_STEPS if name in arguments)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), None)
