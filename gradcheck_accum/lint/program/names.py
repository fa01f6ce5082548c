"""What names are assumed to mean if nothing else shows it: every guess from a name, in one table.

A guess that leaves something unknown can be broad: where it fits wrongly, a mistake is missed. One that states what
something is (an optimizer, a micro-batch, K, a call that does no harm) has to be sure: where it fits wrongly, a right
loop may be blamed. What the names of PyTorch and of other libraries mean is not a guess, and is in `torch_names`.
"""

from __future__ import annotations

import enum
import re
from functools import lru_cache

_MOST_NAMES = 1024
"""How many names' answers a guess keeps."""


class Effect(enum.Enum):
    """What a guess comes to."""

    STATES = "states what something is: findings may rest on it"
    LEAVES_OPEN = "leaves something unknown: no finding rests on it"


class Guess:
    """What a name of this form is taken for."""

    __slots__ = ("effect", "fits", "what")

    def __init__(self, what: str, effect: Effect, pattern: str) -> None:
        self.what = what
        self.effect = effect
        self.fits = lru_cache(_MOST_NAMES)(re.compile(pattern, re.IGNORECASE).search)
        """Asks a name, which every turn of a loop does again."""


OPTIMIZER = Guess("an optimizer", Effect.STATES, r"(^|[_.\[])(opt|optim|optimi[sz]er)(s|\d)*($|[_.\[\]])|optimi[sz]er")
NO_OPTIMIZER = Guess(
    "something of an optimizer's, and none itself",
    Effect.STATES,
    r"sched|scaler|hook|param|args|config(?!ure)|cfg",
)
STEPS_NO_OPTIMIZER = Guess(
    "a scheduler, a profiler or an environment, whose steps are no optimizer's",
    Effect.STATES,
    r"sched|profil|\bprof\b|env|logger|timer",
)
STEPS = Guess("a call that gives K", Effect.STATES, r"accum\w*_(steps|iters|iterations|batches|every|factor)$")
LENGTH = Guess(
    "the length of a pass", Effect.STATES, r"len|num_?batch|(?<![a-z])n_?(batch|iter)|total|per_epoch|last|num_?steps"
)
MICRO_BATCHES = Guess(
    "the number of micro-batches of a pass, which is no K where a counter is taken modulo it",
    Effect.STATES,
    r"(^|_)(num_?|n_?)(batch(es)?|iters)$|(batches|iters|iterations|steps)_(per|in)_epoch$|^len_\w+$|_len$|_length$",
)
GIVES_A_BATCH = Guess(
    "a call that gives the next batch of data",
    Effect.STATES,
    r"^next$|^(get|next|sample|draw|fetch|load)_(next_|train_|training_|mini_?)*batch(es)?$|^get_next$",
)
BEGINNING = Guess(
    "where a training begins, which is at its default",
    Effect.STATES,
    r"start|begin|initial|resume|offset|^((global|current)_)?(step|iter|epoch)$",
)
BATCH = Guess(
    "a call that draws a micro-batch",
    Effect.STATES,
    r"(get|next|load|fetch|read|draw|sample)_?\w*batch(es|_data)?$|^batch$",
)
DATASET = Guess(
    "a collection of samples, whose length is no number of batches",
    Effect.STATES,
    r"dataset|data_set|_ds$|^ds$|samples|examples",
)
FINITE = Guess("a question whether a loss is finite", Effect.STATES, r"(^|_)(is|non|not|all)?_?(finite|inf|nan)(_|$)")
SCHEDULE = Guess(
    "a call that makes a schedule, and does nothing to gradients",
    Effect.STATES,
    r"sched|LR$|(^|_)lr(_|$)|learning_?rate",
)
WRITTEN_DOWN = Guess(
    "a call that keeps what an optimizer is, and leaves it so",
    Effect.STATES,
    r"state_?dict|(^|_)save|checkpoint",
)
ACTS_ON_GRADIENTS = Guess(
    "a call elsewhere that may do anything to the gradients of the optimizer that it is given",
    Effect.LEAVES_OPEN,
    r"step|optim|update|grad|flush|backward|accum|finish|finalize|train",
)
CHANGES_GRADIENTS = Guess(
    "a call elsewhere that changes gradients",
    Effect.LEAVES_OPEN,
    r"(scale|accum|reduce|sync|average|normali[sz]e|zero|clear|update|apply)\w*_?grad"
    r"|grad\w*_?(scale|accum|reduce|sync|average|zero|clear|update|apply)",
)
COUNTS_OR_SCALES = Guess(
    "a setting that may count something, so that it is no coefficient of the objective for sure",
    Effect.LEAVES_OPEN,
    r"scal|accum|num|count|size|world|tokens|len|norm|ratio|factor|rows|batch|inv|step|total|^n_|_n$|^\w$",
)
ACCUMULATION = Guess("a setting about accumulation", Effect.LEAVES_OPEN, r"accum|micro_?(batch|step)|grad\w*_every")
ENDLESS = Guess("what gives batches without an end", Effect.LEAVES_OPEN, r"infinite|forever|endless")
LOSS = Guess("what computes a loss, which its definition may multiply", Effect.LEAVES_OPEN, r"loss|criterion")
CRITERION = Guess(
    "a loss function of PyTorch's, whose reduction is its default",
    Effect.STATES,
    r"(^|[_.])(loss|criterion)(_?(fn|func|function))?$",
)
SHOWS = Guess(
    "a call that reports the numbers that it is given",
    Effect.STATES,
    r"^_?(log|print|report|plot|write|record|display|track)_?(to_)?\w*(loss|scalar|metric|value|result|stat|entry|epoch)\w*$"
    r"|^log_?kv(_mean)?$|result\w*_to_file$|^_?(log|print|report)_(train(ing)?|progress|step|iter\w*|info|summary)$",
)
SAYS_SCALED = Guess("a word that a loss is shown as it is scaled", Effect.LEAVES_OPEN, "scaled")
SETTINGS = Guess(
    "an object of settings, which may tell a function what K is",
    Effect.LEAVES_OPEN,
    r"^(args|cfg|config|opts|opt|hparams|params|settings|self|state|kwargs)$",
)
