"""What the training frameworks do about accumulation: the remedy for a mistake that happens in one of them.

All that this package knows of any framework stands here. What a loop did, and whether it was right, is measured without
it. A remedy is what the caller can do. The framework tests run remedies too, but not that of GA104 for
Lightning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.events import Term
from gradcheck_accum.location import Location
from gradcheck_accum.verify.frames import frames_to_user


@dataclass(frozen=True, slots=True)
class Remark:
    """What is known of the backwards of a line that calls a framework.

    ``says`` is the remedy that the framework's own state calls for, ``divides_at`` the file and line of the framework
    that scales the loss; either is empty where there is none.
    """

    says: str = ""
    divides_at: str = ""


_CLEAR_LAST = "call zero_grad() after step(): inside accumulate() both act at the window's last micro-batch"

_LIGHTNING = {
    "GA102": "return the loss undivided from training_step: Lightning divides it by accumulate_grad_batches",
    "GA103": "Lightning divides by accumulate_grad_batches however many micro-batches the last window holds (its issue "
    "19987): give it a multiple of that number of batches (limit_train_batches, or another accumulate_grad_batches), "
    "or optimise manually",
    "GA104": "Lightning divides each mean by accumulate_grad_batches: with unequal counts, optimise manually and "
    "divide the summed loss by the units of the whole window",
}

_REMEDIES = {
    "accelerate": {
        "GA102": "leave the division to Accelerator.backward(), which divides by gradient_accumulation_steps",
        "GA103": "Accelerator.backward() divides by gradient_accumulation_steps however many micro-batches the last "
        "window holds: give it a multiple of that number of batches, let windows run on into the next pass "
        "(GradientAccumulationPlugin(num_steps=..., sync_with_dataloader=False)), or multiply the loss of the last "
        "window's micro-batches by that number over their own",
        "GA104": "sum the loss over the micro-batch, divide by the units of the whole window, and multiply by "
        "gradient_accumulation_steps, which Accelerator.backward() divides by",
        "GA201": _CLEAR_LAST,
        "GA202": _CLEAR_LAST,
        "GA401": "clip only where accelerator.sync_gradients is true",
    },
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "transformers": {
        "GA104": "let forward() take num_items_in_batch and **kwargs and return the summed loss divided by it, or give "
        "Trainer a compute_loss_func: it counts the targets of the whole window",
    },
}
"""What the caller of a framework can do about a mistake, by the mistake's code."""

_SCALING = {"GA101", "GA102", "GA103"}
"""Mistakes of whoever divides the loss."""


def remark(where: Location, terms: Iterable[Term]) -> Remark:
    """What is known of a backward that runs now, called for at ``where``, of a loss with these ``terms``."""
    says = _who_divides() if where.through.startswith("transformers ") else ""
    scaled_at = (f.where for term in terms for f in term.factors if f.where is not None and f.where.through)
    return Remark(says, next((_in_package(place) for place in scaled_at), ""))


def _in_package(place: Location) -> str:
    """A place in an installed package, from the package's own folder on."""
    package, parts = place.through.partition(" ")[0], Path(place.path).parts
    return f"{'/'.join(parts[parts.index(package) :]) if package in parts else place.path}:{place.line}"


def _who_divides() -> str:
    """Why ``transformers.Trainer`` leaves the division of the loss to others, where it does."""
    for frame in frames_to_user():
        trainer = frame.f_locals.get("self") if frame.f_code.co_name == "training_step" else None
        if trainer is None or frame.f_locals.get("num_items_in_batch") is None:
            continue
        if getattr(trainer, "compute_loss_func", None) is not None:
            return "Trainer leaves the division to compute_loss_func: divide the summed loss by its num_items_in_batch"
        if getattr(trainer, "model_accepts_loss_kwargs", False):
            model = type(getattr(trainer, "model", None)).__name__
            return (
                f"Trainer hands num_items_in_batch to {model}.forward(), because it takes **kwargs, and leaves the "
                "division to it: return the summed loss divided by num_items_in_batch, or take no **kwargs, or set "
                f"{model}.accepts_loss_kwargs = False (trainer.model_accepts_loss_kwargs once there is a Trainer)"
            )
    return ""


def with_remedy(diagnosis: Diagnosis, remarks: dict[tuple[str, int], Remark]) -> Diagnosis:
    """The diagnosis with the framework's own remedy, where it has one, and the line of it that scales the loss.

    ``remarks`` are what was said about the backwards of a line.
    """
    said = remarks.get(diagnosis.where.place, Remark())
    if said.says and diagnosis.mistake.code in {"GA101", "GA104"}:
        return replace(diagnosis, help=said.says)
    package = diagnosis.framework.partition(" ")[0]
    remedy = _REMEDIES.get(package, {}).get(diagnosis.mistake.code, diagnosis.help)
    if package and diagnosis.mistake.code in _SCALING:
        # A diagnosis may name the step, or a backward of its own.
        divides_at = (other.divides_at for other in (said, *remarks.values()))
        line = next((place for place in divides_at if place.startswith(f"{package}/")), "")
        remedy += f" ({diagnosis.framework} scales the loss at {line})" if line else ""
    return replace(diagnosis, help=remedy)
