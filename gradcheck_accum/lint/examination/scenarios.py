"""Every loop of a file under every answer to its open conditions, and what all of them agree on."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

from gradcheck_accum.diagnosis import Diagnosis, diagnose
from gradcheck_accum.ledger.events import Backward, LossShown, Opaque, Step, product_of
from gradcheck_accum.ledger.folding import fold
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.weights import Readings, read_weights
from gradcheck_accum.ledger.window_length import usual_steps
from gradcheck_accum.ledger.windows import Ledger
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.functions import call_from_outside
from gradcheck_accum.lint.examination.tracing import trace_of
from gradcheck_accum.lint.frameworks import self_counting
from gradcheck_accum.lint.frameworks.ignite import drive, is_process_function
from gradcheck_accum.lint.frameworks.lightning import fit, is_training_step
from gradcheck_accum.lint.interpreter.machine import Interpreter
from gradcheck_accum.lint.program.facts import Facts
from gradcheck_accum.lint.program.imported_modules import ImportedModules
from gradcheck_accum.lint.program.names import ACCUMULATION
from gradcheck_accum.lint.program.reach import Reach
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.control import Broke, Continued, Doubted, Exhausted, OutOfBudget, Raised, Restart
from gradcheck_accum.lint.state.knowledge import Knowledge
from gradcheck_accum.lint.state.under_way import Place
from gradcheck_accum.wording import message

_OF_RANKS = frozenset({"GA701", "GA702"})
"""What nothing can be said of at a line without ranks: there is nothing to average."""
_OF_SCALERS = frozenset({"GA501"})
"""What nothing can be said of where no loss was scaled by a grad scaler."""
_OF_WINDOWS = frozenset({"GA302"})
"""What nothing can be said of where fewer than two windows are whole: a first one is like no other."""
_OF_MEANS = frozenset({"GA802"})
"""What nothing can be said of at a line where no mean of several losses was read that is shown."""
_OF_SCALES = frozenset({"GA101", "GA102", "GA103", "GA104"})
"""What nothing can be said of at a line whose losses are multiplied by what is not known."""
_A_TEST = "test_"
"""How functions are called that pytest and unittest call once, each with what was set up for it alone."""
_SCALER_BYPASSED = "GA503"
_STEPS_EVERY_TIME = "GA304"
_INTERRUPTED = "GA303"
_REMAINDER_DROPPED = "GA301"
_CLEARED_EVERY_TIME = "GA201"
_OF_REMAINDERS = frozenset({"GA103", "GA301"})
"""What depends on how many micro-batches a pass has.

Nothing can be said of it where none but the last is kept, or where passes do not end.
"""
_UNSEEN_END = "at an unseen end: "
"""What the code of a remainder begins with where no pass over the data shows its end."""
_MOST_AS_WRITTEN = 4
"""Scenarios that are run once more with the numbers that the source has for its options."""
_MOST_WITH_A_SKIP = 4
"""Scenarios that are run once more for each place that may skip a micro-batch."""
_MOST_SCENARIOS = 16
_MOST_REMOTE = 3
"""How far from the gradients an answer can be (`control_flow.conditions.decide`)."""
_MOST_RESTARTS = 40
_PATIENCE = 60_000
"""Evaluations after which no more scenarios are tried while none of them has found anything."""
_LONG_PATIENCE = 200_000
"""The same where one has: what others could object is heard first."""
_MOST_EVALUATIONS = 1_000_000
"""Evaluations in one file after which further entrances are left alone: 15 times what any file seen so far needed."""
_FOR_EACH = 20_000
"""Evaluations that each entrance may take beyond that: however many short loops a file has, all of them are read."""


@dataclass(frozen=True)
class Scenario:
    """The ledger of one loop under one set of answers, given by condition, and what is wrong with it."""

    decisions: dict[str, bool]
    ledger: Ledger
    diagnoses: tuple[Diagnosis, ...]
    readings: Readings = field(repr=False, compare=False)
    """The weights that the diagnoses were derived from."""
    wordings: dict[str, tuple[str, str]] = field(default_factory=dict, repr=False, compare=False)
    """How the source says that a decision was taken: that it does not hold, and that it does."""

    @property
    def is_unknown(self) -> bool:
        """Whether nothing can be concluded from this scenario."""
        windows = (*self.ledger.windows, *self.ledger.abandoned)
        if not windows:
            return any(isinstance(event, Opaque) for event in self.ledger.trace.events)
        return all(window.unknown for window in windows)

    @property
    def trains(self) -> bool:
        """Whether it has made any gradients."""
        return any(isinstance(event, Backward) for event in self.ledger.trace.events)

    @property
    def lines(self) -> set[int]:
        """The lines that did something to gradients."""
        return {event.where.line for event in self.ledger.trace.events}

    @cached_property
    def averaging_lines(self) -> set[int]:
        """The lines of the backwards that may average gradients over ranks."""
        return {e.where.line for e in self.ledger.trace.events if isinstance(e, Backward) and e.synced is not None}

    @cached_property
    def scales(self) -> bool:
        """Whether a grad scaler has scaled any loss."""
        return any(isinstance(event, Backward) and event.grad_scaled for event in self.ledger.trace.events)

    @cached_property
    def clears_every_time(self) -> bool:
        """Whether it loses the gradients of most micro-batches, those of a remainder among them."""
        return any(diagnosis.mistake.code == _CLEARED_EVERY_TIME for diagnosis in self.diagnoses)

    @cached_property
    def ends_passes(self) -> bool:
        """Whether it shows where every pass over the data ends: a stream goes on where the next one begins."""
        passes = self.ledger.passes
        return all(passes.of(event) is not None for event in self.ledger.trace.events if isinstance(event, Backward))

    @cached_property
    def mean_lines(self) -> set[int]:
        """The lines at which losses were read of which several are shown as one number."""
        return {e.where.line for e in self.ledger.trace.events if isinstance(e, LossShown) and len(e.losses) > 1}

    @cached_property
    def known_lines(self) -> dict[int, bool]:
        """The lines of the backwards, and whether the weight of any of the terms there is known."""
        known: dict[int, bool] = {}
        for event in self.ledger.trace.events:
            if isinstance(event, Backward):
                shows = any(product_of(term.factors) is not None for term in event.terms)
                known[event.where.line] = shows or known.get(event.where.line, False)
        return known

    def knows_scale_at(self, line: int) -> bool:
        """Whether the scale of the losses of a backward at this line is known, or of any where it has none.

        Where a setting about accumulation was asked, what is not known may be the division that it decides on.
        """
        known = self.known_lines.get(line, not self.known_lines or any(self.known_lines.values()))
        return known or any(map(ACCUMULATION.fits, self.decisions))

    @cached_property
    def has_windows(self) -> bool:
        """Whether it has trained long enough to show how long a window is."""
        every = [self.ledger.account(*names) for names in self.ledger.accounts()]
        usual = ((windows, usual_steps(windows, self.ledger.same)) for windows in every)
        return any(sum(window.micro_batches == steps for window in windows) > 1 for windows, steps in usual)

    def claims_at(self, line: int) -> set[str]:
        """The codes of what it found at a line: of remainders, with another name where no pass showed its end.

        That would be said of what ends passes too, but not the other way round.
        """
        found = {d.mistake.code for d in self.diagnoses if d.where.line == line}
        unseen = {_UNSEEN_END + code for code in found & _OF_REMAINDERS}
        return found | unseen if self.ends_passes else found - _OF_REMAINDERS | unseen

    def silent_at(self, line: int) -> frozenset[str]:
        """The codes of what it can say nothing of at a line."""
        of_ranks = frozenset() if line in self.averaging_lines else _OF_RANKS
        of_windows = frozenset() if self.has_windows else _OF_WINDOWS
        of_means = frozenset() if line in self.mean_lines else _OF_MEANS
        shows_remainders = self.ends_passes and not self.clears_every_time
        of_remainders = frozenset() if shows_remainders else _OF_REMAINDERS
        of_scalers = frozenset() if self.scales else _OF_SCALERS
        of_scales = frozenset[str]() if self.knows_scale_at(line) else _OF_SCALES
        return of_ranks | of_windows | of_means | of_remainders | of_scalers | of_scales

    @property
    def accumulates(self) -> bool:
        """Whether any step waited for several micro-batches."""
        return any(window.micro_batches > 1 for window in self.ledger.windows)


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
    took more than its budget, so that nothing is known.
    """

    root: Root
    scenarios: list[Scenario]
    spent: int
    interrupted: tuple[tuple[Diagnosis, Ledger], ...] = ()
    refuted: frozenset[tuple[str, int]] = frozenset()
    is_thorough: bool = True
    is_followed: bool = True


def explore(facts: Facts, modules: ImportedModules, *, thorough: bool = False) -> Iterator[Explored]:
    """The scenarios of every entrance of a file, outermost first.

    Code that one has run in training is no entrance of its own.

    ``thorough`` tries further scenarios even where those so far leave nothing that all could agree on.
    """
    module = facts.module
    reach = Reach(facts, *(one.facts for one in modules.all))
    visited: set[syntax.Node] = set()
    spent = 0
    if any(reach.backward(s) for s in module.body if not isinstance(s, (syntax.FunctionDef, syntax.ClassDef))):
        own = _scenarios(module, modules, reach, Root(None), visited, thorough)
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
        own = _scenarios(module, modules, reach, root, visited, thorough)
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
) -> Explored:
    function = root.function
    counts_itself = function is not None and bool(self_counting.counters(reach, function))
    knowledge = Knowledge()
    pending: list[tuple[int, int, dict[str, bool], object]] = [(0, 0, {}, None)]
    """Decisions to try, with how remote from the gradients they are, the nearest first, and what was done before."""
    tried: set[frozenset[tuple[str, bool]]] = set()
    found: list[Scenario] = []
    agreement = _Agreement()
    order = itertools.count(1)
    spent, waited = 0, 0
    """The evaluations of all runs, and those of the complete ones: what a run learns by restarting is learned once."""
    is_thorough = True
    places: set[Place] = set()
    """The places that may skip a micro-batch."""
    while pending and len(tried) < _MOST_SCENARIOS and waited < agreement.patience:
        remoteness, _, given, before = heapq.heappop(pending)
        run, took = _complete_run(module, modules, reach, knowledge, root, given)
        spent += took
        for shorten in (knowledge.ignore_idle, knowledge.hurry, knowledge.skim):
            if run is None and shorten():
                run, took = _complete_run(module, modules, reach, knowledge, root, given)
                spent += took
        if run is not None and not tried and spent > _PATIENCE and knowledge.skim():
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
            if counts_itself:
                reported = [diagnosis for diagnosis in reported if diagnosis.mistake.code in self_counting.REPORTED]
            found.append(Scenario(run.decisions, ledger, tuple(reported), readings, run.wordings))
            agreement.hear(found[-1])
            lines = reach.gradient_lines(run.calls.visited, module if function is None else None)
            if not thorough and agreement.is_settled(lines):
                is_thorough = False
                break
        done = run.recorder.done(), frozenset(run.decisions)
        if done == before:
            # What changed nothing, and led to no other question, is asked for together with others only after those
            # that might.
            remoteness += _MOST_REMOTE
        asked = list(run.decisions)
        for position in range(len(given), len(asked)):
            flipped = {name: run.decisions[name] for name in asked[:position]}
            flipped[asked[position]] = not run.decisions[asked[position]]
            heapq.heappush(pending, (remoteness + run.remoteness[asked[position]], next(order), flipped, done))
    interrupted: list[tuple[Diagnosis, Ledger]] = []
    depends: set[tuple[str, int]] = set()
    for place in sorted(places) if not counts_itself else ():
        runs, took = _with_a_skip(found, place, partial(_complete_run, module, modules, reach, knowledge, root))
        interrupted += _interrupted(runs)
        depends |= _depends_on_skips(runs)
        spent += took
    refuted, took = _refuted(found, partial(_complete_run, module, modules, reach, Knowledge(as_written=True), root))
    return Explored(root, found, spent + took, tuple(interrupted), refuted | depends, is_thorough)


def _refuted(
    scenarios: list[Scenario], complete: Callable[[dict[str, bool]], tuple[Interpreter | None, int]]
) -> tuple[frozenset[tuple[str, int]], int]:
    """What is found of remainders, by code and line, and does not show where every number is what the source says.

    A pass whose length the source leaves open, or whose windows' length it does, is assumed to end in the middle of a
    window. Where the defaults of a program settle both, what it does as it is written decides, unless a few epochs
    stand for those that the source counts. And how many evaluations that took.
    """
    reported = {
        (d.mistake.code, d.where.line)
        for d, ledger in _agreed(scenarios)
        if d.mistake.code in _OF_REMAINDERS and (ledger.trace.assumed_length or ledger.trace.assumed_steps)
    }
    spent = 0
    for scenario in scenarios[:_MOST_AS_WRITTEN] if reported else ():
        run, took = complete(scenario.decisions)
        spent += took
        trace = trace_of(run.recorder) if run is not None else None
        if trace is None or trace.assumed_length or (trace.assumed_turns and not scenario.ledger.trace.assumed_turns):
            return frozenset(), spent
        lines = {event.where.line for event in trace.events}
        shown = {(d.mistake.code, d.where.line) for d in diagnose(fold(trace))}
        reported = {one for one in reported if one[1] in lines and one not in shown}
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
                    _enter(run, reach, function, root.owner, scope)
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
    owner = owner or next((cls for cls in reach.classes if function in cls.body), None)
    instance: v.Instance | None = None
    if owner is not None:
        holder = scope.names.get(owner.name)
        cls = holder if isinstance(holder, v.Class) else None
        if cls is None:
            return
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
    if instance is not None and self_counting.counters(reach, function):
        self_counting.call_each_batch(run, instance, function, scope)
        return
    for _ in range(1 if function.name.startswith(_A_TEST) else 2):
        call_from_outside(run, v.Function(function, scope, instance))
        if run.recorder.passes > 1 or run.recorder.is_cut_off:
            break
        run.recorder.assumed_turns = True


class _Vote:
    """The codes that all scenarios found at a line which had a voice in them."""

    __slots__ = ("_silent", "codes")

    def __init__(self) -> None:
        self.codes: set[str] = set()
        self._silent: set[str] | None = None
        """The codes that none of them could judge; None before the first."""

    def hear(self, found: set[str], silent: frozenset[str]) -> None:
        """Count one scenario's vote, which can say nothing of the codes that it is ``silent`` about."""
        if self._silent is None:
            self.codes, self._silent = set(found), set(silent)
        else:
            self.codes = self.codes & (found | silent) | (found & self._silent)
            self._silent &= silent

    @property
    def knows_scales(self) -> bool:
        """Whether any of them could judge by what losses are divided."""
        return self._silent is not None and self._silent.isdisjoint(_OF_SCALES)


class _Agreement:
    """What the scenarios so far agree on: per line the codes that every known one which ran it has found.

    A scenario has no voice in what it cannot show: averaging where there are no ranks, a clip of scaled gradients
    where nothing was scaled, where windows close if it ends before two of them are whole, remainders where no pass
    over the data ends. One that steps with every micro-batch has none at a line that no answer passes by: whether such
    a line is right depends on the very branch that accumulates.
    """

    def __init__(self) -> None:
        self._votes: dict[int, _Vote] = {}
        """Per line what every one has found."""
        self._of_windows: dict[int, _Vote] = {}
        """Per line what every one has found which accumulates."""
        self._ran: Counter[int] = Counter()
        """How many have run each line."""
        self._trained = 0
        """How many have made gradients."""
        self._is_short = True
        """Whether none was long enough to show what a window is."""

    def hear(self, scenario: Scenario) -> None:
        """Take one scenario's diagnoses for its vote."""
        if scenario.is_unknown:
            return
        accumulates = scenario.accumulates
        self._trained += scenario.trains
        self._is_short = self._is_short and not scenario.has_windows
        for line in scenario.lines:
            for votes in (self._votes, self._of_windows) if accumulates else (self._votes,):
                votes.setdefault(line, _Vote()).hear(scenario.claims_at(line), scenario.silent_at(line))
            self._ran[line] += scenario.trains

    def holds(self, diagnosis: Diagnosis) -> bool:
        """Whether every known scenario that ran the line of ``diagnosis``, and has a voice in it, found the same."""
        code, line = diagnosis.mistake.code, diagnosis.where.line
        never_passed = self._ran[line] == self._trained
        votes = (self._votes, self._of_windows) if never_passed else (self._votes,)
        return any(line in one and not one[line].codes.isdisjoint({code, _UNSEEN_END + code}) for one in votes)

    @property
    def patience(self) -> int:
        """After how many evaluations no more scenarios are worth their time."""
        return _LONG_PATIENCE if self._has_any else _PATIENCE

    def is_settled(self, lines: set[int]) -> bool:
        """Whether no further scenario could bring a finding, if only ``lines`` can do anything to gradients."""
        heard = self._votes.keys() if all(vote.knows_scales for vote in self._votes.values()) else set[int]()
        return not self._has_any and not self._is_short and lines <= heard

    @property
    def _has_any(self) -> bool:
        return any(vote.codes for votes in (self._votes, self._of_windows) for vote in votes.values())


def agreed(explored: Explored) -> list[tuple[Diagnosis, Ledger]]:
    """The diagnoses that hold in every scenario which runs their line, each with a ledger that shows it."""
    every = _agreed(explored.scenarios)
    return [(d, ledger) for d, ledger in every if (d.mistake.code, d.where.line) not in explored.refuted]


def _agreed(scenarios: list[Scenario]) -> list[tuple[Diagnosis, Ledger]]:
    agreement = _Agreement()
    for scenario in scenarios:
        agreement.hear(scenario)
    found: dict[tuple[str, int], tuple[Diagnosis, Ledger]] = {}
    for scenario in scenarios:
        for diagnosis in scenario.diagnoses:
            found.setdefault((diagnosis.mistake.code, diagnosis.where.line), (diagnosis, scenario.ledger))
    doubted = set()
    if _steps_through_a_scaler(scenarios):
        doubted.add(_SCALER_BYPASSED)
    if any(_never_steps(scenario) for scenario in scenarios):
        # Whether it steps is an open condition, which may hold at some of the micro-batches.
        doubted.add(_STEPS_EVERY_TIME)
    kept = [e for e in found.values() if agreement.holds(e[0]) and e[0].mistake.code not in doubted]
    return [(_with_its_condition(diagnosis, scenarios), ledger) for diagnosis, ledger in kept]


def _with_its_condition(diagnosis: Diagnosis, scenarios: list[Scenario]) -> Diagnosis:
    """A diagnosis that only some scenarios have a voice in, with the settings that tell them from the others."""
    code, line = diagnosis.mistake.code, diagnosis.where.line
    heard = [s for s in scenarios if not s.is_unknown and line in s.lines]
    voiced = [s.decisions for s in heard if not _is_silent(s, code, line)]
    silent = [s.decisions for s in heard if _is_silent(s, code, line)]
    common = {q: answer for q, answer in voiced[0].items() if all(d.get(q) is answer for d in voiced)} if voiced else {}
    differing = [[q for q, answer in common.items() if d.get(q) is (not answer)] for d in silent]
    deciding = dict.fromkeys(questions[0] for questions in differing if len(questions) == 1)
    if not deciding or any(deciding.keys().isdisjoint(questions) for questions in differing):
        return diagnosis
    wordings = {question: words for s in heard for question, words in s.wordings.items()}
    words = " and ".join(wordings[q][common[q]] for q in deciding if q in wordings)
    return replace(diagnosis, said=message(f"when {words}, ", diagnosis.said)) if words else diagnosis


def _is_silent(scenario: Scenario, code: str, line: int) -> bool:
    """Whether a scenario has nothing to say of a mistake at a line, nor of a remainder whose end it does not see."""
    if code not in scenario.silent_at(line):
        return False
    return code not in _OF_REMAINDERS or {code, _UNSEEN_END + code}.isdisjoint(scenario.claims_at(line))


def _never_steps(scenario: Scenario) -> bool:
    return scenario.trains and not any(isinstance(event, Step) for event in scenario.ledger.trace.events)


def _steps_through_a_scaler(scenarios: list[Scenario]) -> bool:
    """Whether any scenario steps through a grad scaler.

    The condition that passes it by in another is then the one that switches it off (``GradScaler(enabled=use_amp)``),
    and its scale is 1 there.
    """
    return any(isinstance(event, Step) and event.through_scaler for s in scenarios for event in s.ledger.trace.events)
