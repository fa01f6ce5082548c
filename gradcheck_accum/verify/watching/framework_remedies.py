"""What the training frameworks do about accumulation: the fix for a mistake that happens in one of them.

All that this package knows about frameworks is in this module and, about their releases, in `framework_releases`. What
a loop did, and whether it was right, is measured without it. A remedy is what the caller can do without changing the
framework. The framework tests run remedies too, but not that of GA104 for Lightning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.events import Term
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.stack.frames import frames_to_user, location_of, package_of, with_version
from gradcheck_accum.verify.watching.framework_releases import SMOOTHED, UNCOUNTED, UNDIVIDED, repair_of


@dataclass(frozen=True, slots=True)
class Remark:
    """What is known of the backwards of a line that calls a framework.

    ``says`` is the remedy that the framework's own state calls for where the loss is not divided, ``of_means`` that for
    a mean of means, ``divides_at`` the file and line of the framework that scales the loss, ``backward_at`` those that
    call backward; each is empty where there is none. ``shown`` is what tells one bug of a release from another.
    """

    says: str = ""
    of_means: str = ""
    divides_at: str = ""
    backward_at: str = ""
    shown: frozenset[str] = frozenset()


_CLEAR_LAST = (
    "call zero_grad() after step(): inside accumulate(), both take effect only at the window's last micro-batch"
)

_LIGHTNING = {
    "GA102": "return the loss undivided from training_step: Lightning divides it by accumulate_grad_batches",
    "GA103": "Lightning divides by accumulate_grad_batches however many micro-batches the last window holds (its issue "
    "19987): give it a multiple of that number of batches (limit_train_batches, or another accumulate_grad_batches), "
    "or use manual optimization",
    "GA104": "Lightning divides each mean by accumulate_grad_batches: with unequal counts, use manual optimization and "
    "divide the summed loss by the units of the whole window",
}

_REMEDIES = {
    "accelerate": {
        "GA102": "leave the division to Accelerator.backward(), which divides by gradient_accumulation_steps",
        "GA103": "Accelerator.backward() divides by gradient_accumulation_steps however many micro-batches the last "
        "window holds: give it a multiple of that number of batches, let windows continue into the next epoch "
        "(GradientAccumulationPlugin(num_steps=..., sync_with_dataloader=False)), or multiply the loss of the last "
        "window's micro-batches by that number divided by theirs",
        "GA104": "sum the loss over the micro-batch, divide by the units of the whole window, and multiply by "
        "gradient_accumulation_steps, which Accelerator.backward() divides by",
        "GA201": _CLEAR_LAST,
        "GA202": _CLEAR_LAST,
        "GA401": "clip only where accelerator.sync_gradients is true",
    },
    "fastai": {
        "GA101": "make n_acc of GradientAccumulation, which counts samples, a multiple of the batch size",
    },
    "ignite": {
        "GA301": "give it a multiple of gradient_accumulation_steps batches over all epochs: its windows continue from "
        "one epoch to the next",
    },
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "transformers": {
        "GA104": "let forward() accept num_items_in_batch and **kwargs and return the summed loss divided by "
        "num_items_in_batch, or give Trainer a compute_loss_func: num_items_in_batch counts the targets of the whole "
        "window",
    },
}
"""What the caller of a framework can do about a mistake, by the mistake's code."""

_OPTIMIZERS = {
    "fastai": "give Learner opt_func=partial(OptimWrapper, opt=torch.optim.SGD), or another PyTorch optimizer",
    "keras": "train model.parameters() in your own loop, with a PyTorch optimizer",
}
"""How to train with one of PyTorch's optimizers, where a framework has its own."""


def in_place_of(optimizers_of: str) -> str:
    """What to train with, so that it can be compared, instead of the optimizers of a package (with its version)."""
    usual = "train with a PyTorch optimizer, or make the update in the step() of a subclass of torch.optim.Optimizer"
    return _OPTIMIZERS.get(optimizers_of.partition(" ")[0], usual)


_SCALING = {"GA101", "GA102", "GA103"}
"""Mistakes of whoever divides the loss."""


_WITH_A_TRAINER = {"transformers", "trl", "sentence_transformers"}


def remark(where: Location, terms: Iterable[Term]) -> Remark:
    """What is known of a backward that runs now, called for at ``where``, of a loss with these ``terms``."""
    package = where.through.partition(" ")[0]
    scaled_at = (f.where for term in terms for f in term.factors if f.where is not None and f.where.through)
    own = next((frame for frame in frames_to_user() if package_of(frame.f_code.co_filename) == package), None)
    found = Remark(
        divides_at=next((_in_package(place) for place in scaled_at), ""),
        backward_at=_in_package(location_of(own)) if own is not None else "",
    )
    return _of_trainer(found) if package in _WITH_A_TRAINER else found


def _in_package(place: Location) -> str:
    """A place in an installed package, from the package's own folder on."""
    package, parts = place.through.partition(" ")[0], Path(place.path).parts
    return f"{'/'.join(parts[parts.index(package) :]) if package in parts else place.path}:{place.line}"


def _of_trainer(found: Remark) -> Remark:
    """What the state of the ``transformers.Trainer`` that calls backward adds."""
    for frame in frames_to_user():
        if frame.f_code.co_name != "training_step" or "num_items_in_batch" not in frame.f_locals:
            continue
        trainer, counted = frame.f_locals.get("self"), frame.f_locals["num_items_in_batch"] is not None
        shown = {
            SMOOTHED: getattr(trainer, "label_smoother", None) is not None,
            UNCOUNTED: not counted,
            UNDIVIDED: not (counted and getattr(trainer, "model_accepts_loss_kwargs", False)),
        }
        return replace(
            found,
            says=_who_divides(trainer) if counted else "",
            of_means=_who_averages(trainer),
            shown=frozenset(what for what, is_so in shown.items() if is_so),
        )
    return found


def _who_divides(trainer: Any) -> str:
    """Why ``transformers.Trainer`` leaves the division of the loss to others, where it does."""
    if getattr(trainer, "compute_loss_func", None) is not None:
        return "Trainer leaves the division to compute_loss_func: divide the summed loss by its num_items_in_batch"
    if getattr(trainer, "model_accepts_loss_kwargs", False):
        model = type(getattr(trainer, "model", None)).__name__
        return (
            f"Trainer passes num_items_in_batch to {model}.forward(), because it accepts **kwargs, and leaves the "
            "division to it: return the summed loss divided by num_items_in_batch, or do not accept **kwargs, or set "
            f"{model}.accepts_loss_kwargs = False (trainer.model_accepts_loss_kwargs once there is a Trainer)"
        )
    return ""


def _who_averages(trainer: Any) -> str:
    """What to do about a mean of means that a package's own trainer makes, and not the model."""
    made_by = getattr(getattr(type(trainer), "compute_loss", None), "__code__", None)
    package = package_of(made_by.co_filename) if made_by is not None else ""
    if package in {"", "transformers"}:
        return ""
    return (
        f"{type(trainer).__name__} of {with_version(package)} computes the loss as a mean over each micro-batch: give "
        "every micro-batch the same number of units (sequences of equal length), or use a loss type that is normalized "
        "over the whole window, if it has one"
    )


def with_remedy(diagnosis: Diagnosis, remarks: dict[tuple[str, int], Remark]) -> Diagnosis:
    """The diagnosis with the framework's own remedy, where it has one, and the line of it that scales the loss.

    ``remarks`` are what was said about the backwards of a line.
    """
    said = remarks.get(diagnosis.where.place, Remark())
    code, package = diagnosis.mistake.code, diagnosis.framework.partition(" ")[0]
    known = repair_of(diagnosis.framework, code, said.shown)
    if known is not None:
        remedy = known.advice(diagnosis.framework)
    elif said.of_means and code == "GA104":
        remedy = said.of_means
    elif said.says and code in {"GA101", "GA104"}:
        return replace(diagnosis, help=said.says)
    else:
        remedy = _REMEDIES.get(package, {}).get(code, diagnosis.help)
    if package and code in _SCALING:
        # A diagnosis may name the step, or a backward of its own.
        every = (said, *remarks.values())
        line = next((o.divides_at for o in every if o.divides_at.startswith(f"{package}/")), "")
        called = next((o.backward_at for o in every if o.backward_at.startswith(f"{package}/")), "")
        if line:
            remedy += f" ({diagnosis.framework} scales the loss at {line})"
        elif called:
            remedy += f" ({diagnosis.framework} calls backward() at {called})"
    return replace(diagnosis, help=remedy)
