"""What training code states by a name: K, and the length of a schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
    "K",
)
"""What an argument is named that is K in every loop."""

NAME_OF_LENGTH = "num_training_steps"
"""The name by which the function of a LambdaLR knows for how many moves it was made, as Transformers has it."""

NAMES_THAT_MAY_BE_STEPS = ("steps", "k")
"""What one is named that is K in some loops, and another number in others."""

NAME_OF_SIZE = "batch_size"
"""What the size of a batch is called where it has no name of its own: ``len(x)``."""

NAMES_OF_SIZE = (NAME_OF_SIZE, "bs", "bsz", "micro_batch_size", "per_device_train_batch_size", "train_batch_size")
"""What a number is named that is the size of a batch."""

LETTER_OF_SIZE = "B"
"""The letter that it has, as it stands."""

_FOLDED = frozenset(name.casefold() for name in NAMES_OF_STEPS if len(name) > 1)
_LETTERS = frozenset(name for name in NAMES_OF_STEPS if len(name) == 1)


def is_name_of_steps(name: str) -> bool:
    """Whether what has this name is K in every loop; constants are written in capitals, one letter as it stands."""
    return name in _LETTERS or name.casefold() in _FOLDED


def names_steps(origins: Iterable[str]) -> bool:
    """Whether one of the names of a number is K's."""
    return any(map(is_name_of_steps, origins))


def names_size(origins: Iterable[str]) -> bool:
    """Whether one of the names of a number is that of a batch's size."""
    return any(origin == LETTER_OF_SIZE or origin.casefold() in NAMES_OF_SIZE for origin in origins)


def stated_steps(arguments: Mapping[str, object]) -> int | None:
    """K, as the arguments that a loop is called with by name say it; None where none of them does."""
    values = (arguments[name] for name in NAMES_OF_STEPS if name in arguments)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), None)
