"""Numbers for the names that the source leaves open, given where the loop shows what they count: K, or a length."""

from __future__ import annotations

from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.names import BEGINNING, LENGTH, MICRO_BATCHES
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.control import Restart
from gradcheck_accum.lint.state.knowledge import ASSUMED_STEPS, LARGEST_STEPS
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol
from gradcheck_accum.lint.syntax import Comparison, Junction, walk


def bind_steps(run: State, value: Any) -> Any:
    """Make an unknown modulus a small number, and note a known one."""
    value = v.as_setting(value)
    if isinstance(value, Num):
        if isinstance(value.value, int) and value.value > 0 and run.in_training:
            run.knowledge.note_modulus(value, run.condition_acts, run.boundary)
        return value
    if isinstance(value, Symbol) and value.name:
        known = isinstance(value.default, int) and 2 <= value.default <= LARGEST_STEPS
        default = value.default if known and isinstance(value.default, int) else ASSUMED_STEPS
        run.knowledge.take_for_modulus(default)
        tag = v.tag_of_name(value.name)
        bind(run, value.name, value.as_number(Num(default, frozenset({v.STEPS, tag}), frozenset({tag}))))
    return value


def begins_at_default(run: State, name: str, setting: Symbol, default: object) -> bool:
    """Whether a setting says where a training begins, which nothing has set: other values are for resuming one."""
    return default == 0 and bool(BEGINNING.fits(name)) and setting.name not in run.assigned


def bind_length(run: State, value: Any, read_as: str) -> Any:
    """Make an unknown modulus the number of micro-batches that a pass gets, if its name says that it is that number.

    A test that holds at its multiples holds at the last micro-batch of each pass. So it is if the loop ends there, and
    is no window itself.
    """
    value = v.as_setting(value)
    says = (value.name, read_as) if isinstance(value, Symbol) and value.name else ()
    is_called_so = any(MICRO_BATCHES.fits(name.rpartition(".")[2]) for name in says)
    if run.loops.passes and says and (is_called_so or _ends_a_pass(run)):
        run.recorder.assumed_length = True
        bind_to_pass(run, value.name)
    return value


def _ends_a_pass(run: State) -> bool:
    """Whether a condition is being evaluated at which a loop over data ends that steps in its turns."""
    branch = run.question.branch
    return branch is not None and isinstance(branch.body[-1], syntax.Break) and run.reach.steps(run.loops.body)


def bind(run: State, name: str, number: Num) -> None:
    """Give a name its number. Raises Restart."""
    run.knowledge.bindings[name] = number
    raise Restart


def bind_to_pass(run: State, name: str) -> None:
    """Let a name be the number of a pass's micro-batches, whatever is learned of that later. Raises Restart."""
    run.knowledge.lengths.add(name)
    raise Restart


def bind_in_comparison(run: State, left: Any, right: Any, op: Comparison, literal: bool) -> tuple[Any, Any]:
    """Give a symbol that a counter is compared with at a boundary its number: K, or the pass's length."""
    if literal or run.question.in_guard or op not in (Comparison.EQ, Comparison.GTE):
        # What a guard leaves a loop at may be the end of all passes, and says nothing of how long one is.
        return left, right
    if isinstance(left, Num) and isinstance(end := end_of_range(run, right), Num):
        if v.END in end.tags and run.question.in_boundary and _asks_for_one_of_several(run.question.branch):
            # Who steps at the end as well says that it may come in the middle of a window.
            run.knowledge.end_anywhere()
        return left, end
    for number, other in ((left, right), (right, left)):
        other = v.as_setting(other)
        if isinstance(number, Num) and isinstance(other, Symbol) and other.name:
            if LENGTH.fits(other.name.rpartition(".")[2]) and run.loops.passes:
                run.recorder.assumed_length = True
                bind_to_pass(run, other.name)
            if run.question.in_boundary and number is left and v.UNITS in number.tags:
                # A window that is full when it has seen so many samples: the whole window's units.
                bind(run, other.name, Num(ASSUMED_STEPS * run.recorder.units, frozenset({v.UNITS})))
            if run.question.in_boundary and number is left:
                bind_steps(run, other)
    return left, right


def _asks_for_one_of_several(branch: syntax.If | None) -> bool:
    """Whether a condition holds in several cases, of which the end of a loop is one."""
    nodes = () if branch is None else walk(branch.test)
    return any(isinstance(node, syntax.BoolOp) and node.op is Junction.OR for node in nodes)


def end_of_range(run: State, value: Any) -> Any:
    """A value, or the number of turns that a training loop over a range was given where it names the range's end.

    What counts with the turns of such a loop comes to it in the last one: it is no K.
    """
    turns = run.iterated.ends.get(value.name) if isinstance(value, Symbol) else None
    if turns is None:
        return value
    return Num(
        turns, frozenset({v.LENGTH, v.ASSUMED} if v.is_multiple_of_steps(value) else {v.LENGTH, v.ASSUMED, v.END})
    )
