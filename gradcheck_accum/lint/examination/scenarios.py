"""Every loop of a file under every answer to its open conditions, as far as these matter."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from gradcheck_accum.diagnosis import Diagnosis, diagnose
from gradcheck_accum.ledger.folding import fold
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.weights import read_weights
from gradcheck_accum.ledger.window_length import usual_steps
from gradcheck_accum.ledger.windows import Ledger
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.conditions import MOST_REMOTE
from gradcheck_accum.lint.control_flow.functions import call_from_outside
from gradcheck_accum.lint.examination.agreement import Agreement, agreed_by
from gradcheck_accum.lint.examination.scenario import OF_REMAINDERS, Scenario
from gradcheck_accum.lint.examination.tracing import trace_of
from gradcheck_accum.lint.frameworks import self_counting
from gradcheck_accum.lint.frameworks.ignite import drive, is_process_function
from gradcheck_accum.lint.frameworks.lightning import fit, is_training_step
from gradcheck_accum.lint.interpreter.machine import Interpreter
from gradcheck_accum.lint.program.facts import Facts
from gradcheck_accum.lint.program.imported_modules import ImportedModules
from gradcheck_accum.lint.program.reach import Reach, remembered
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.control import Broke, Continued, Doubted, Exhausted, OutOfBudget, Raised, Restart
from gradcheck_accum.lint.state.knowledge import Knowledge
from gradcheck_accum.lint.state.under_way import Place

_A_TEST = "test_"
"""How functions are called that pytest and unittest call once, each with what was set up for it alone."""
_INTERRUPTED = "GA303"
_REMAINDER_DROPPED = "GA301"
_MOST_AS_WRITTEN = 4
"""Scenarios that are run once more with the numbers that the source has for its options."""
_MOST_WITH_A_SKIP = 4
"""Scenarios that are run once more for each place that may skip a micro-batch."""
_MOST_SCENARIOS = 16
_MOST_RESTARTS = 40
_WITHOUT_GRADIENTS = 2 * MOST_REMOTE
"""How much farther an answer is that leaves a run without gradients as it is: even beyond those like an unknown one."""
_PATIENCE = 60_000
"""Evaluations after which no more scenarios are tried while none of them has found anything."""
_LONG_PATIENCE = 200_000
"""The same where one has: what others could object is heard first."""
_MOST_EVALUATIONS = 1_000_000
"""Evaluations in one file after which further entrances are left alone: 15 times what any file seen so far needed."""
_FOR_EACH = 20_000
"""Evaluations that each entrance may take beyond that: however many short loops a file has, all of them are read."""


@dataclass(frozen=True, slots=True)
class Root:
    """One entrance to a file's training code: the module itself (None), or a function that nothing else calls.

    ``owner`` is the class on an object of which a method is called, where that is not the one that defines it.
    """

    function: syntax.FunctionDef | None
    owner: syntax.ClassDef | None = None


@dataclass(frozen=True, slots=True)
class Explored:
    """The scenarios of one entrance, and the evaluations that they took.

    ``interrupted`` are the mistakes that show where a micro-batch is skipped, each with a ledger that shows it;
    ``refuted`` those, by code and line, that the program as it is written does not make.
    ``is_thorough`` if none was left out that could add nothing to what is found; not ``is_followed`` if a run of it
    took more than its budget, so that nothing is known. Not ``is_complete`` while there may be more to try.
    """

    root: Root
    scenarios: list[Scenario]
    spent: int
    interrupted: tuple[tuple[Diagnosis, Ledger], ...] = ()
    refuted: frozenset[tuple[str, int]] = frozenset()
    is_thorough: bool = True
    is_followed: bool = True
    is_complete: bool = True


def explore(facts: Facts, modules: ImportedModules, *, thorough: bool = False) -> Iterator[Explored]:
    """The scenarios of every entrance of a file, outermost first; of each one what is known after every scenario.

    Code that one has run in training is no entrance of its own.

    ``thorough`` tries further scenarios even where those so far leave nothing that all could agree on.
    """
    module = facts.module
    reach = Reach(facts, *(one.facts for one in modules.all))
    visited: set[syntax.Node] = set()
    spent = 0
    if any(reach.backward(s) for s in module.body if not isinstance(s, (syntax.FunctionDef, syntax.ClassDef))):
        own = yield from _scenarios(module, modules, reach, Root(None), visited, thorough)
        spent += own.spent
        yield own
    roots = [Root(function) for function in reach.training_functions()]
    roots += [Root(function, owner) for function, owner in reach.inherited_training()]
    read = 0
    for root in roots:
        if root.function in visited:
            continue
        if spent > _MOST_EVALUATIONS + read * _FOR_EACH:
            yield Explored(root, [], 0, is_followed=False)
            continue
        own = yield from _scenarios(module, modules, reach, root, visited, thorough)
        spent += own.spent
        read += 1
        yield own


def _scenarios(
    module: syntax.Module,
    modules: ImportedModules,
    reach: Reach,
    root: Root,
    visited: set[syntax.Node],
    thorough: bool,
) -> Generator[Explored, None, Explored]:
    function = root.function
    reported_alone = None if function is None else _reported_alone(reach, function, _owner_of(reach, root))
    knowledge = Knowledge()
    pending: list[tuple[int, int, dict[str, bool], object]] = [(0, 0, {}, None)]
    """Decisions to try, with how remote from the gradients they are, the nearest first, and what was done before."""
    tried: set[frozenset[tuple[str, bool]]] = set()
    found: list[Scenario] = []
    agreement = Agreement()
    order = itertools.count(1)
    spent, waited = 0, 0
    """The evaluations of all runs, and those of the complete ones: what a run learns by restarting is learned once."""
    is_thorough = True
    places: set[Place] = set()
    """The places that may skip a micro-batch."""
    while pending and len(tried) < _MOST_SCENARIOS and waited < (_LONG_PATIENCE if agreement.has_any else _PATIENCE):
        remoteness, _, given, before = heapq.heappop(pending)
        run, took = _complete_run(module, modules, reach, knowledge, root, given)
        spent += took
        for shorten in (knowledge.ignore_idle, knowledge.hurry, knowledge.skim):
            if run is None and shorten():
                run, took = _complete_run(module, modules, reach, knowledge, root, given)
                spent += took
        takes_long = spent > _PATIENCE
        if run is not None and not tried and (run.calls.evaluated or (takes_long and knowledge.skim())):
            run, took = _complete_run(module, modules, reach, knowledge, root, given)
            spent += took
        if run is None:
            return Explored(root, [], spent, is_followed=False)
        waited += run.spent
        if run.recorder.has_backward:
            # What ran and made no gradients was set not to, or its loop was not entered: it is an entrance too.
            visited |= run.calls.visited
        places |= run.skips.passed.keys()
        if function is not None:
            visited.add(function)
        key = frozenset(run.decisions.items())
        if key in tried:
            continue
        tried.add(key)
        if function is None or run.recorder.micro_batch > 0:
            # A function without a loop over data is a piece of somebody else's loop: its ledger says nothing.
            names = knowledge.assumed_steps(run.recorder.relied_on)
            ledger = fold(replace(trace_of(run.recorder), assumed_steps=names))
            readings = read_weights(ledger)
            reported = diagnose(ledger, readings)
            if reported_alone is not None:
                reported = [diagnosis for diagnosis in reported if diagnosis.mistake.code in reported_alone]
            found.append(Scenario(run.decisions, ledger, tuple(reported), readings, run.wordings))
            agreement.hear(found[-1])
            lines = reach.gradient_lines(run.calls.visited, module if function is None else None)
            if not thorough and agreement.is_settled(lines):
                is_thorough = False
                break
            yield Explored(root, found, spent, is_complete=False)
        if found and found[-1].is_unknown and found[-1].decisions is run.decisions:
            if len(tried) == 1 and (without_extras := _without_extras(run)):
                waited -= run.spent  # it takes no other one's time
                heapq.heappush(pending, (0, next(order), without_extras, None))
            # What is like one that can be followed comes first.
            remoteness += MOST_REMOTE
        done = run.recorder.done(), frozenset(run.decisions)
        if done == before:
            # What changed nothing, and led to no other question, is asked for together with others only after those
            # that might.
            remoteness += MOST_REMOTE
        asked = list(run.decisions)
        for position in range(len(given), len(asked)):
            flipped = {name: run.decisions[name] for name in asked[:position]}
            flipped[asked[position]] = not run.decisions[asked[position]]
            farther = run.remoteness[asked[position]]
            if farther and not run.recorder.has_backward:
                # Where no gradients are made, what decides on none makes none either.
                farther += _WITHOUT_GRADIENTS
            heapq.heappush(pending, (remoteness + farther, next(order), flipped, done))
    interrupted: list[tuple[Diagnosis, Ledger]] = []
    depends: set[tuple[str, int]] = set()
    for place in sorted(places) if reported_alone is None else ():
        runs, took = _with_a_skip(found, place, partial(_complete_run, module, modules, reach, knowledge, root))
        interrupted += _interrupted(runs)
        depends |= _depends_on_skips(runs)
        spent += took
    refuted, took = _refuted(found, partial(_complete_run, module, modules, reach, Knowledge(as_written=True), root))
    return Explored(root, found, spent + took, tuple(interrupted), refuted | depends, is_thorough)


def _without_extras(run: Interpreter) -> dict[str, bool]:
    """The answers of a run but for the flags that its setup has asked, which are off: nothing is added to the training.

    A program that offers many things besides may be followed without them, and not with all of them.
    """
    flags = {
        name
        for name, answer in run.decisions.items()
        if answer and run.remoteness[name] == MOST_REMOTE and v.is_flag(name) and not run.knowledge.prefers(name)
    }
    asked = list(run.decisions)
    last = max((place for place, name in enumerate(asked) if name in flags), default=-1)
    return {name: name not in flags and run.decisions[name] for name in asked[: last + 1]}


def _refuted(
    scenarios: list[Scenario], complete: Callable[[dict[str, bool]], tuple[Interpreter | None, int]]
) -> tuple[frozenset[tuple[str, int]], int]:
    """What is found of remainders, by code and line, and does not show where every number is what the source says.

    A pass whose length the source leaves open, or whose windows' length it does, is assumed to end in the middle of a
    window. Where the defaults of a program settle both, what it does as it is written decides, unless a few epochs
    stand for those that the source counts, or it has such windows and its losses' scale is not known. And how many
    evaluations that took.
    """
    reported = {
        (d.mistake.code, d.where.line)
        for d, ledger in agreed_by(scenarios)
        if d.mistake.code in OF_REMAINDERS and (ledger.trace.assumed_length or ledger.trace.assumed_steps)
    }
    spent = 0
    for scenario in scenarios[:_MOST_AS_WRITTEN] if reported else ():
        run, took = complete(scenario.decisions)
        spent += took
        if run is None:
            return frozenset(), spent
        trace = trace_of(run.recorder)
        if trace.assumed_length or (trace.assumed_turns and not scenario.ledger.trace.assumed_turns):
            return frozenset(), spent
        readings = read_weights(ledger := fold(trace))
        written = Scenario(run.decisions, ledger, tuple(diagnose(ledger, readings)), readings)
        shown = {(d.mistake.code, d.where.line) for d in written.diagnoses}
        # A step for a remainder that is not there does not run as it is written. Where none runs, that shows nothing.
        is_whole = not written.has_short_windows and any(window.step is not None for window in ledger.windows)
        lines = written.lines | scenario.lines if is_whole else written.lines
        silent = {one for one in reported if written.has_short_windows and one[0] in written.silent_of_scales(one[1])}
        reported = {one for one in reported - silent if one[1] in lines and one not in shown}
    return frozenset(reported), spent


class _Skipped(NamedTuple):
    """A scenario in which a micro-batch is skipped."""

    scenario: Scenario
    """The same without that."""
    ledger: Ledger
    gives_up: bool
    """Whether the window of that micro-batch is given up with it."""


def _with_a_skip(
    scenarios: list[Scenario],
    place: Place,
    complete: Callable[[dict[str, bool], tuple[Place, int]], tuple[Interpreter | None, int]],
) -> tuple[list[_Skipped], int]:
    """Every known scenario if ``place`` skips the first micro-batch of its second window.

    And how many evaluations that took.
    """
    runs: list[_Skipped] = []
    spent = 0
    for scenario in [s for s in scenarios if not s.is_unknown][:_MOST_WITH_A_SKIP]:
        steps = usual_steps(scenario.ledger.windows, scenario.ledger.same)
        if steps is None or steps < 2:
            continue
        run, took = complete(scenario.decisions, (place, steps))
        spent += took
        if run is None or run.skips.passed.get(place, 0) <= steps:
            continue
        trace = scenario.ledger.trace
        where = Location(run.recorder.path, place[0], place[1] + 1)
        ledger = fold(replace(trace_of(run.recorder), assumed_steps=trace.assumed_steps, skips_at=where))
        runs.append(_Skipped(scenario, ledger, run.skips.gives_up))
    return runs, spent


def _interrupted(runs: list[_Skipped]) -> list[tuple[Diagnosis, Ledger]]:
    """What shows of windows that were interrupted in every scenario in which a micro-batch was skipped."""
    every: list[dict[tuple[str, Location], tuple[Diagnosis, Ledger]]] = []
    for _, ledger, gives_up in runs:
        found = [] if gives_up else [d for d in diagnose(ledger) if d.mistake.code == _INTERRUPTED]
        every.append({(d.mistake.code, d.where): (d, ledger) for d in found})
    common = set.intersection(*map(set, every)) if every else set[tuple[str, Location]]()
    return [every[0][key] for key in sorted(common)]


def _depends_on_skips(runs: list[_Skipped]) -> set[tuple[str, int]]:
    """What is found of the end of the training, by code and line, and depends on how many micro-batches were skipped.

    Where the source shows how many there are, but counts those that run, it is not known how many are left over.
    """
    found: set[tuple[str, int]] = set()
    for scenario, ledger, _ in runs:
        trace = scenario.ledger.trace
        if not (trace.assumed_length or trace.assumed_turns) and _left_over(ledger) != _left_over(scenario.ledger):
            dropped = [d for d in scenario.diagnoses if d.mistake.code == _REMAINDER_DROPPED]
            leak = {d.where.line for d in dropped if d.windows}
            found |= {(d.mistake.code, d.where.line) for d in dropped if d.where.line not in leak}
    return found


def _left_over(ledger: Ledger) -> int:
    """How many micro-batches no step has used."""
    return sum(window.micro_batches for window in ledger.abandoned)


def _complete_run(
    module: syntax.Module,
    modules: ImportedModules,
    reach: Reach,
    knowledge: Knowledge,
    root: Root,
    decisions: dict[str, bool],
    skip: tuple[Place, int] | None = None,
) -> tuple[Interpreter | None, int]:
    """One run to its end, restarted while it learns numbers; None where it needs more than its budget.

    And how many evaluations that took.
    """
    spent = 0
    function = root.function
    for _ in range(_MOST_RESTARTS):
        run = Interpreter(modules, reach, knowledge, decisions, skip)
        scope = v.Scope(names={"__name__": "__main__"})
        try:
            if function is None:
                run.run_module(module, scope, definitions_only=False)
            else:
                run.run_module(module, scope, definitions_only=True)
                with suppress(Raised, Exhausted, Broke, Continued):
                    _enter(run, reach, function, _owner_of(reach, root), scope)
        except Restart:
            spent += run.spent
            continue
        except Doubted:
            # What else the entrance would have called is no entrance of its own, as if it had been called.
            run.calls.visited |= reach.callees(run.calls.visited, module if function is None else None)
        except (OutOfBudget, RecursionError):
            return None, spent + run.spent
        return run, spent + run.spent
    return None, spent


def _owner_of(reach: Reach, root: Root) -> syntax.ClassDef | None:
    """The class on an object of which an entrance is called, if it is a method."""
    return root.owner or next((cls for cls in reach.classes if root.function in cls.body), None)


@remembered
def _reported_alone(reach: Reach, function: syntax.FunctionDef, owner: syntax.ClassDef | None) -> frozenset[str] | None:
    """What a function shows by itself each call of which is a micro-batch of a loop that nothing is known of.

    None for any other, and where its framework is known.
    """
    of_a_framework = (owner is not None and is_training_step(reach, owner, function)) or is_process_function(
        reach, function
    )
    if of_a_framework:
        return None
    if self_counting.is_called_each_batch(reach, function):
        return self_counting.REPORTED
    return self_counting.REPORTED_OF_TURNS if self_counting.is_whole_turn(reach, function) else None


def _enter(
    run: Interpreter,
    reach: Reach,
    function: syntax.FunctionDef,
    owner: syntax.ClassDef | None,
    scope: v.Scope,
) -> None:
    """Call a function as a stranger would, twice: what one call leaves behind, the next one meets.

    One that makes several passes over the data itself, or never ends, is a whole training, and what it leaves behind
    meets no other.
    """
    instance: v.Instance | None = None
    if owner is not None:
        holder = scope.names.get(owner.name)
        cls = holder if isinstance(holder, v.Class) else None
        if cls is None:
            return
        # Its class may be one that derives from this, and has written what this leaves empty.
        empty = reach.left_empty(cls.methods.values())
        cls = replace(cls, methods={name: node for name, node in cls.methods.items() if name not in empty})
        instance = v.Instance(cls)
        init = cls.bound("__init__", instance)
        if init is not None and init.node is not function:
            call_from_outside(run, init)
        scope = cls.origins.get(function.name, scope)
    if owner is not None and instance is not None and is_training_step(reach, owner, function):
        fit(run, instance, function, scope)
        return
    if is_process_function(reach, function):
        drive(run, v.Driver(v.Function(function, scope, instance)), [], {})
        return
    if _reported_alone(reach, function, owner) is not None:
        self_counting.call_each_batch(run, instance, function, scope)
        return
    for _ in range(1 if function.name.startswith(_A_TEST) else 2):
        call_from_outside(run, v.Function(function, scope, instance))
        if run.recorder.passes > 1 or run.recorder.is_cut_off:
            break
        run.recorder.assumed_turns = True


def agreed(explored: Explored) -> list[tuple[Diagnosis, Ledger]]:
    """The diagnoses that hold in every scenario which runs their line, each with a ledger that shows it."""
    every = agreed_by(explored.scenarios)
    return [(d, ledger) for d, ledger in every if (d.mistake.code, d.where.line) not in explored.refuted]
