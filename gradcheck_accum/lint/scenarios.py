"""Every loop of a file under every answer to its open conditions, and what all of them agree on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gradcheck_accum.diagnosis import Diagnosis, diagnose
from gradcheck_accum.ledger import Ledger, fold
from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.control import OutOfBudget, Restart
from gradcheck_accum.lint.functions import call_from_outside
from gradcheck_accum.lint.interpreter import Interpreter
from gradcheck_accum.lint.knowledge import Knowledge
from gradcheck_accum.lint.reach import Reach

_MOST_SCENARIOS = 16
_MOST_RESTARTS = 40


@dataclass(frozen=True, slots=True)
class Scenario:
    """The ledger of one loop under one set of answers, given by condition."""

    decisions: dict[str, bool]
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Root:
    """One entrance to a file's training code: the module itself (None), or a function that nothing else calls."""

    function: ast.FunctionDef | ast.AsyncFunctionDef | None


def explore(module: ast.Module, path: str) -> Iterator[tuple[Root, list[Scenario]]]:
    """The scenarios of every entrance of a file, outermost first; code that one has run is no entrance of its own."""
    reach = Reach(module)
    visited: set[ast.AST] = set()
    if any(reach.backward(s) for s in module.body if not isinstance(s, (ast.FunctionDef, ast.ClassDef))):
        yield Root(None), _scenarios(module, path, reach, None, visited)
    for function in reach.training_functions():
        if function not in visited:
            yield Root(function), _scenarios(module, path, reach, function, visited)


def _scenarios(
    module: ast.Module,
    path: str,
    reach: Reach,
    function: ast.FunctionDef | ast.AsyncFunctionDef | None,
    visited: set[ast.AST],
) -> list[Scenario]:
    knowledge = Knowledge()
    pending: list[dict[str, bool]] = [{}]
    tried: set[frozenset[tuple[str, bool]]] = set()
    found: list[Scenario] = []
    while pending and len(tried) < _MOST_SCENARIOS:
        given = pending.pop(0)
        run = _complete_run(module, path, reach, knowledge, function, given)
        if run is None:
            return []
        visited |= run.visited
        if function is not None:
            visited.add(function)
        key = frozenset(run.decisions.items())
        if key in tried:
            continue
        tried.add(key)
        if function is None or run.recorder.micro_batch > 0:
            # A function without a loop over data is a piece of somebody else's loop: its ledger says nothing.
            found.append(Scenario(run.decisions, fold(run.recorder.trace())))
        asked = list(run.decisions)
        for position in range(len(given), len(asked)):
            prefix = {name: run.decisions[name] for name in asked[:position]}
            pending.append({**prefix, asked[position]: not run.decisions[asked[position]]})
    return found


def _complete_run(
    module: ast.Module,
    path: str,
    reach: Reach,
    knowledge: Knowledge,
    function: ast.FunctionDef | ast.AsyncFunctionDef | None,
    decisions: dict[str, bool],
) -> Interpreter | None:
    """One run to its end, restarted while it learns numbers; None where it needs more than its budget."""
    for _ in range(_MOST_RESTARTS):
        run = Interpreter(path, reach, knowledge, decisions)
        scope = v.Scope(names={"__name__": "__main__"})
        try:
            if function is None:
                run.run_module(module, scope, definitions_only=False)
            else:
                run.run_module(module, scope, definitions_only=True)
                _enter(run, reach, function, scope)
        except Restart:
            continue
        except (OutOfBudget, RecursionError):
            return None
        return run
    return None


def _enter(run: Interpreter, reach: Reach, function: ast.FunctionDef | ast.AsyncFunctionDef, scope: v.Scope) -> None:
    """Call a function as a stranger would, twice: what one call leaves behind, the next one meets."""
    owner = next((cls for cls in reach.classes if function in cls.body), None)
    instance: v.Instance | None = None
    if owner is not None:
        holder = scope.names.get(owner.name)
        cls = holder if isinstance(holder, v.Class) else None
        if cls is None:
            return
        instance = v.Instance(cls)
        init = cls.methods.get("__init__")
        if init is not None and init is not function:
            call_from_outside(run, v.Function(init, scope, instance))
    for _ in range(2):
        call_from_outside(run, v.Function(function, scope, instance))


def agreed(scenarios: list[Scenario]) -> list[Diagnosis]:
    """The diagnoses that hold in every scenario which runs the line that they name."""
    judged = [(s, diagnose(s.ledger)) for s in scenarios]
    found: dict[tuple[str, int], Diagnosis] = {}
    for _, diagnoses in judged:
        for diagnosis in diagnoses:
            found.setdefault((diagnosis.mistake.code, diagnosis.where.line), diagnosis)
    kept: list[Diagnosis] = []
    for (code, line), diagnosis in found.items():
        votes = [
            any(d.mistake.code == code and d.where.line == line for d in diagnoses)
            for scenario, diagnoses in judged
            if _runs(scenario, line) and not _is_unknown(scenario)
        ]
        if votes and all(votes):
            kept.append(diagnosis)
    return kept


def _runs(scenario: Scenario, line: int) -> bool:
    return any(event.where.line == line for event in scenario.ledger.trace.events)


def _is_unknown(scenario: Scenario) -> bool:
    windows = (*scenario.ledger.windows, *scenario.ledger.abandoned)
    return bool(windows) and all(window.unknown for window in windows)
