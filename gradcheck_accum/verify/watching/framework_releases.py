"""Releases of training libraries that accumulate wrongly, and the first of each that no longer does.

Every bug was run on a release that has it and on one that is repaired (the first, or one soon after it), and so was
what the caller can do instead. What a loop did is measured without this: it is only asked for the remedy.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

SMOOTHED = "the loss is made by Trainer's label smoother"
UNCOUNTED = "Trainer has not counted the targets of the window"
UNDIVIDED = "Trainer has not counted the targets in a way that the model accepts"


@dataclass(frozen=True, slots=True)
class Repair:
    """A bug of a package's releases from ``since`` on, that ``repaired`` is the first without.

    ``says`` what they do, ``instead`` what their caller can do, ``source`` who says so. Where releases have several
    bugs that show as one mistake, ``shown_by`` is what the run must have shown.
    """

    package: str
    codes: frozenset[str]
    since: str
    repaired: str
    says: str
    instead: str
    source: str
    shown_by: str = ""

    def advice(self, release: str) -> str:
        """The remedy for whoever calls ``release``, the package with its version."""
        return f"{release} {self.says}; fixed in {self.repaired} ({self.source}): upgrade, or {self.instead}"


_TRANSFORMERS = "https://github.com/huggingface/transformers"
_DIVIDE = "override Trainer.compute_loss() and divide what it returns by self.args.gradient_accumulation_steps"
_SMOOTHS = (
    "averages a smoothed loss over each micro-batch and leaves the division to the model, which never receives it"
)

REPAIRS = (
    Repair(
        "transformers",
        frozenset({"GA104"}),
        "0",
        "4.46.1",
        "divides the mean of each micro-batch by gradient_accumulation_steps, however many targets it holds",
        "give every micro-batch the same number of targets (pack sequences to one length)",
        f"{_TRANSFORMERS}/pull/34191",
    ),
    Repair(
        "transformers",
        frozenset({"GA101", "GA104"}),
        "4.46.0",
        "5.15.0",
        _SMOOTHS,
        _DIVIDE,
        f"{_TRANSFORMERS}/pull/47261",
        SMOOTHED,
    ),
    Repair(
        "transformers",
        frozenset({"GA101"}),
        "4.46.0",
        "4.48.0",
        "does not divide the loss, and the model does not accept the number of targets to divide by",
        _DIVIDE,
        f"{_TRANSFORMERS}/pull/35207",
        UNDIVIDED,
    ),
    Repair(
        "transformers",
        frozenset({"GA101"}),
        "4.48.0",
        "4.53.0",
        "leaves the division to a model whose forward() accepts **kwargs, although it found no labels to count",
        "set trainer.model_accepts_loss_kwargs = False",
        f"{_TRANSFORMERS}/blob/v4.53.0/src/transformers/trainer.py",
        UNCOUNTED,
    ),
    Repair(
        "transformers",
        frozenset({"GA301"}),
        "4.46.0",
        "4.52.1",
        "miscounts the remainder of an epoch, and adds it to the next epoch's first window, or drops it",
        "give it a multiple of gradient_accumulation_steps batches",
        f"{_TRANSFORMERS}/pull/37923",
    ),
    Repair(
        "transformers",
        frozenset({"GA103"}),
        "4.52.1",
        "4.55.0",
        "divides by gradient_accumulation_steps however many micro-batches the last window holds",
        "give it a multiple of that number of batches",
        f"{_TRANSFORMERS}/issues/38837",
    ),
)


def repair_of(release: str, code: str, shown: Collection[str] = ()) -> Repair | None:
    """The known bug of a release (a package with its version) that makes a mistake: first what a run has shown."""
    package, _, version = release.partition(" ")
    own = _numbers(version)
    fitting = [
        repair
        for repair in REPAIRS
        if repair.package == package
        and code in repair.codes
        and own
        and _numbers(repair.since) <= own < _numbers(repair.repaired)
        and (not repair.shown_by or repair.shown_by in shown)
    ]
    return max(fitting, key=lambda repair: bool(repair.shown_by), default=None)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: a release candidate counts as its release."""
    found: list[int] = []
    for part in version.split("."):
        digits = part[: next((i for i, letter in enumerate(part) if not letter.isdigit()), len(part))]
        if not digits:
            break
        found.append(int(digits))
        if digits != part:
            break
    return tuple(found)
