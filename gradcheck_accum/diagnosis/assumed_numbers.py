"""What a message may state: numbers that the loop shows; assumed numbers are replaced by words.

An engine that reads the source chooses a length for a loader that does not show its own, and a number for a K that is
only a name. What follows from such a choice is no fact about the loop: a message says what it depends on, and states no
count, length or weight that is not in the source.
"""

from __future__ import annotations

from gradcheck_accum.diagnosis.account import Account


def steps_in_words(account: Account, steps: int | None = None) -> str:
    """K, or another number of micro-batches: by its name where it is the number that was taken for that name."""
    number = account.steps if steps is None else steps
    names = [name for name, value in account.ledger.trace.assumed_steps if value == number]
    return names[0] if len(names) == 1 else str(number)


def is_length_assumed(account: Account) -> bool:
    """Whether the length of windows is that of data whose length was assumed: no number of it is in the source."""
    bounds = [w.step.counted_by for w in account.windows if w.step is not None]
    is_counted = any(bound is not None and bound.steps == account.steps for bound in bounds)
    return account.ledger.trace.assumed_length and not (is_counted or account.states_steps)


def if_any_is_left_over(account: Account) -> str:
    """When a pass leaves a remainder, where its length was assumed; empty where the source shows the length."""
    if not account.ledger.trace.assumed_length:
        return ""
    return f"if the loader's length is not a multiple of {steps_in_words(account)}"


def counts_windows(account: Account) -> bool:
    """Whether the number of windows, and of micro-batches in them, is the loop's own."""
    trace = account.ledger.trace
    return not (trace.assumed_length or trace.assumed_turns or trace.assumed_steps)


def says_steps_by_name(account: Account) -> bool:
    """Whether a message that names K in words states no number that was assumed for it."""
    return not account.ledger.trace.assumed_steps or not steps_in_words(account).isdigit()
