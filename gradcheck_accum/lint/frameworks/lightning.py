"""Lightning: what its Trainer does around a module with manual optimization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.functions import call_function
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State

if TYPE_CHECKING:
    from gradcheck_accum.lint.program.reach import Reach

_EPOCHS = """\
self.trainer.num_training_batches = len(batches)
for _ in range(2):
    for batch_idx, batch in enumerate(batches):
        self.trainer.is_last_batch = batch_idx + 1 == len(batches)
        self.training_step({arguments})
"""
"""What ``Trainer.fit`` does to a module, as far as it matters: ``batch_idx`` restarts in every epoch."""
_EPOCH_END = """\
    self.on_train_epoch_end()
"""


def is_training_step(reach: Reach, cls: syntax.ClassDef, function: syntax.FunctionDef) -> bool:
    """Whether a method is the one that a Trainer calls with every batch of data."""
    takes_a_batch = function.name == "training_step" and len(function.args.args) in (2, 3)
    return takes_a_batch and any(name.endswith("LightningModule") for name in reach.bases(cls))


def fit(run: State, module: v.Instance, step: syntax.FunctionDef, outer: v.Scope) -> None:
    """Train a module as a Trainer would, on data of which nothing is known."""
    source = _EPOCHS.format(arguments=", ".join(("batch", "batch_idx")[: len(step.args.args) - 1]))
    if "on_train_epoch_end" in module.cls.methods:
        source += _EPOCH_END
    program = syntax.parse(source, at=step.where)
    here = v.Scope(names={"optimizers": _configured(run, module) or v.Optimizer("self.optimizers()")})
    module.attributes["optimizers"] = v.Function(_giving("optimizers", step.where), here)
    run.execute(program.body, v.Scope(names={"self": module, "batches": v.Loader()}, outer=outer))


def _giving(name: str, where: Location) -> syntax.Lambda:
    """A function that gives what has a name, whatever it is asked with."""
    asked = syntax.Arguments(where, None, (), (), None, (), (), syntax.Arg(where, None, "_", None), ())
    return syntax.Lambda(where, None, asked, syntax.Name(where, None, name))


def _configured(run: State, module: v.Instance) -> Any:
    """What ``self.optimizers()`` gives where ``configure_optimizers`` shows it: one optimizer or a list, else None."""
    configure = module.cls.bound("configure_optimizers", module)
    made = call_function(run, configure, [], {}) if configure is not None else None
    if isinstance(made, tuple) and len(made) == 2 and all(isinstance(part, list) for part in made):
        made = made[0]  # the other list is of schedulers
    several = made if isinstance(made, (list, tuple)) else [made]
    several = [one.get("optimizer") if isinstance(one, dict) else one for one in several]
    if not several or not all(isinstance(one, v.Optimizer) for one in several):
        return None
    return several[0] if len(several) == 1 else several
