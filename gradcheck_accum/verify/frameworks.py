"""What the training frameworks do about accumulation: the remedy for a mistake that happens in one of them.

All that this package knows of any framework stands here. What a loop did, and whether it was right, is measured without
it.
"""

from __future__ import annotations

from dataclasses import replace

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.location import Location
from gradcheck_accum.verify.frames import frames_to_user

_LIGHTNING = {
    "GA102": "return the loss undivided from training_step: Lightning divides it by accumulate_grad_batches",
    "GA103": "Lightning divides by accumulate_grad_batches however many micro-batches the last window holds: give it a "
    "multiple of that number of batches (limit_train_batches, drop_last), or optimise manually",
    "GA104": "Lightning divides each mean by accumulate_grad_batches: with unequal counts, optimise manually and "
    "divide the summed loss by the units of the whole window",
}

_CLEAR_LAST = "call zero_grad() after step(): inside accumulate() both act at the window's last micro-batch"

_REMEDIES = {
    "accelerate": {
        "GA102": "leave the division to Accelerator.backward(), which divides by gradient_accumulation_steps",
        "GA103": "Accelerator.backward() divides by gradient_accumulation_steps however many micro-batches the last "
        "window holds: multiply the loss of its micro-batches by that number over their own",
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


def remark(where: Location) -> str:
    """What the framework's own state says about a backward that runs now, called for at ``where``; else nothing."""
    return _who_divides() if where.through.startswith("transformers ") else ""


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
                "division to it: return the summed loss divided by num_items_in_batch, or take no **kwargs (or set "
                f"{model}.accepts_loss_kwargs = False)"
            )
    return ""


def with_remedy(diagnosis: Diagnosis, remarks: dict[tuple[str, int], str]) -> Diagnosis:
    """The diagnosis with the framework's own remedy, where it has one.

    ``remarks`` are what was said about the backwards of a line.
    """
    said = remarks.get(diagnosis.where.place, "")
    if said and diagnosis.mistake.code in {"GA101", "GA104"}:
        return replace(diagnosis, help=said)
    remedy = _REMEDIES.get(diagnosis.framework.partition(" ")[0], {}).get(diagnosis.mistake.code)
    return replace(diagnosis, help=remedy) if remedy else diagnosis
