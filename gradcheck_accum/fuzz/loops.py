"""Tries a user's loop on many cases, and finds the smallest failing ones."""

from __future__ import annotations

import contextlib
import gc
import inspect
import io
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from torch.optim.optimizer import Optimizer

from gradcheck_accum.fuzz.cases import AccumCase, CannotSupply
from gradcheck_accum.fuzz.kept import KeptCases
from gradcheck_accum.fuzz.shrinking import order, smallest
from gradcheck_accum.fuzz.strategies import accum_cases
from gradcheck_accum.ledger.stated_names import stated_steps
from gradcheck_accum.ledger.windows import Fate, Ledger
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.results.fuzzing import FailedCase, Interrupted, LoopTrial, TrialOutcome
from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

Progress = Callable[[int, int], None]

_UNDECIDED = "Undecided_steps"
"""The kind of failure in which verify leaves steps on accumulated gradients undecided."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """One case, run: its outcome, the kind of failure (empty for none), and a description."""

    case: AccumCase
    outcome: TrialOutcome
    kind: str = ""
    what: str = ""
    result: VerifyResult | None = None
    is_compared: bool = False


def fuzz_loop(
    loop: Callable[..., object],
    *,
    target: str = "",
    factories: ModuleType | None = None,
    examples: int | None = None,
    random_seed: int | None = None,
    time_budget: float | None = None,
    progress: Progress | None = None,
) -> LoopTrial:
    """Call ``loop`` on drawn cases, its arguments supplied by name, and keep the smallest failing case of each kind.

    ``factories`` is a module whose functions supply arguments (see `AccumCase.arguments`). Hypothesis' active profile
    decides how many cases are tried, unless ``examples`` is given. A ``random_seed`` determines what is drawn; without
    one, earlier failures from the profile's database are tried first. Neither the clock nor the number of mistakes ends
    the drawing: with one seed, every run tries the same cases. No case starts after ``time_budget`` seconds. Raises
    CannotSupply if an argument cannot be supplied, and Interrupted, with the results so far, on Ctrl-C.
    """
    name = target or getattr(loop, "__qualname__", "the loop")
    AccumCase(samples=1, batch_size=1, accumulation_steps=1).arguments(loop, factories)
    wanted = settings.default.max_examples if examples is None and settings.default else examples or 100
    trial = _Trial(loop, factories, None if time_budget is None else time.monotonic() + time_budget)
    kept = KeptCases(name) if random_seed is None else None

    def test(case: AccumCase) -> None:
        trial.count(case)
        if progress:
            progress(min(trial.outcomes.total(), wanted), wanted)

    run = settings(
        max_examples=wanted,
        deadline=None,
        database=None,
        verbosity=Verbosity.quiet,
        print_blob=False,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )(given(case=accum_cases())(test))
    if random_seed is not None:
        run = seed(random_seed)(run)

    def so_far() -> LoopTrial:
        found = sorted(trial.failing.values(), key=_telling)
        failures = (FailedCase(j.outcome, str(j.case), j.what, _test(name, j, factories), j.result) for j in found)
        return LoopTrial(name, trial.outcomes, tuple(failures))

    with _light_heap():
        try:
            for case in kept.cases() if kept else ():
                trial.count(case)
            run()
            trial.shrink()
            trial.settle()
        except KeyboardInterrupt:
            raise Interrupted(so_far()) from None
    if kept:
        kept.replace([judged.case for judged in trial.failing.values()])
    return so_far()


class _Trial:
    """A loop that is being tried: the number of cases by outcome, and the smallest failing case of each kind."""

    def __init__(self, loop: Callable[..., object], factories: ModuleType | None, ends: float | None) -> None:
        self._loop = loop
        self._factories = factories
        self._ends = ends
        self.outcomes: Counter[TrialOutcome] = Counter()
        self.failing: dict[str, _Judged] = {}

    def count(self, case: AccumCase) -> None:
        """Try one case, unless time is up."""
        if self._is_over():
            return
        judged = _judge(self._loop, case, self._factories)
        self.outcomes[judged.outcome] += 1
        best = self.failing.get(judged.kind)
        if judged.kind and (best is None or order(case) < order(best.case)):
            self.failing[judged.kind] = judged

    def shrink(self) -> None:
        """Shrink the failing case of each kind while it fails in the same way."""
        tried: dict[AccumCase, _Judged] = {}

        def fails(kind: str, case: AccumCase) -> bool:
            if case not in tried:
                if self._is_over():
                    return False
                tried[case] = _judge(self._loop, case, self._factories)
            if tried[case].kind != kind:
                return False
            self.failing[kind] = tried[case]
            return True

        for kind in list(self.failing):
            smallest(self.failing[kind].case, partial(fails, kind))

    def settle(self) -> None:
        """Compare the smallest undecided case with the same samples at K = 1, if the loop takes K as an argument.

        Only this one, as it takes as long as many cases do.
        """
        judged = self.failing.get(_UNDECIDED)
        if judged is not None and not self._is_over():
            self.failing[_UNDECIDED] = _beside_k_1(self._loop, judged, self._factories)

    def _is_over(self) -> bool:
        return self._ends is not None and time.monotonic() > self._ends


def _telling(judged: _Judged) -> tuple[int, bool, str]:
    """Sort key of reported failures; uneven counts occur in many cases and are least informative, so they come last."""
    return list(TrialOutcome).index(judged.outcome), judged.kind == "GA104", judged.kind


def _judge(loop: Callable[..., object], case: AccumCase, factories: ModuleType | None) -> _Judged:
    try:
        given_by_name = case.arguments(loop, factories)
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            case.in_dtype(),  # a loop may create a model or a loss itself
            observe(
                script=getattr(loop, "__qualname__", "the loop"),
                reference="ledger",
                accumulation_steps=stated_steps(given_by_name),
            ) as observation,
        ):
            warnings.simplefilter("ignore")
            loop(**given_by_name)
    except CannotSupply:
        raise
    except (Exception, SystemExit) as error:
        return _Judged(case, TrialOutcome.RAISED, f"Raises_{type(error).__name__}", _raised(error, loop))
    result, ledger = observation.result(), observation.ledger()
    outcome = TrialOutcome.of(result)
    if outcome is TrialOutcome.EQUIVALENT:
        return _Judged(case, outcome, result=result)
    if outcome is TrialOutcome.UNDECIDED:
        # If nothing was accumulated, K = 1 is the same case.
        kind = _UNDECIDED if any(window.micro_batches > 1 for window in result.windows) else "Undecided"
        return _Judged(case, outcome, kind, result.reason, result)
    # Uneven counts occur in many cases: any other mistake is more informative.
    codes = sorted({d.mistake.code for d in result.diagnosis}, key=lambda code: (code == "GA104", code))
    return _Judged(case, outcome, codes[0] if codes else "Unexplained", _words(result, ledger), result)


def _beside_k_1(loop: Callable[..., object], judged: _Judged, factories: ModuleType | None) -> _Judged:
    """A case that verify leaves undecided, compared with the same samples at K = 1."""
    from gradcheck_accum.comparing import compared_loop

    case = judged.case
    try:
        each = [one.arguments(loop, factories) for one in (case, case.at_k_1())]
        with case.in_dtype(), contextlib.redirect_stdout(io.StringIO()):
            found = compared_loop(loop, each)
    except ValueError:
        return judged  # this process cannot be forked
    if found.verdict is Verdict.DEVIATES:
        what = f"{found.reason} (the loop itself at K = 1; verify: {judged.what})"
        return replace(judged, outcome=TrialOutcome.DEVIATES, what=what, is_compared=True)
    if found.verdict is Verdict.EQUIVALENT:
        return replace(judged, what=f"{judged.what}; compared with itself at K = 1, {found.reason}")
    return judged


def _raised(error: BaseException, loop: Callable[..., object]) -> str:
    """The exception, and the last line in the loop's own file that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    file = getattr(getattr(inspect.unwrap(loop), "__code__", None), "co_filename", "")
    own = [frame for frame in frames if frame.filename == file]
    last = (own or frames)[-1]
    text = " ".join(str(error).split())
    return f"it raises {type(error).__name__}{': ' + text if text else ''} ({last.filename}:{last.lineno})"


def _words(result: VerifyResult, ledger: Ledger) -> str:
    """A description of what is wrong, most informative first."""
    lost = [e for w in ledger.abandoned for e in w.entries if e.fate in (Fate.LEFT, Fate.WIPED)]
    rows = [e.backward.terms[0].rows for e in {id(e.backward): e for e in lost}.values() if e.backward.terms]
    codes = {d.mistake.code for d in result.diagnosis}
    if "GA301" in codes and rows and None not in rows:
        count = int(sum(r for r in rows if r is not None))
        return (
            "the last sample never reaches the optimizer"
            if count == 1
            else f"the last {count} samples of an epoch never reach the optimizer"
        )
    if result.diagnosis:
        return "; ".join(d.message for d in result.diagnosis)
    return result.reason


def _test(target: str, judged: _Judged, factories: ModuleType | None) -> str:
    """A pytest test that shows the failure, with a unique name among the kinds of failure."""
    path, _, name = target.rpartition("::")
    module = path.rpartition("/")[2].removesuffix(".py") or "train"
    name = name.rpartition(".")[2]
    own = f", {factories.__name__}" if factories is not None else ""
    kind = CATALOGUE[judged.kind].name.replace("-", "_") if judged.kind in CATALOGUE else judged.kind.lower()
    lines = [
        f"from {module} import {name}",
        "",
        "from gradcheck_accum.fuzz import AccumCase",
        "",
        "",
        f"def test_{name}_{kind}(accum_check):",
        f"    # {judged.case}",
        f"    case = {judged.case.code()}",
        f"    accum_check.compare({name}, [one.arguments({name}{own}) for one in (case, case.at_k_1())])"
        if judged.is_compared
        else f"    accum_check({name}, **case.arguments({name}{own}))",
    ]
    if factories is not None:
        lines.insert(0, f"import {factories.__name__}")
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def _light_heap() -> Any:
    """Inside the block, the search for optimizers does not visit objects that existed before.

    Every observation searches all objects of the garbage collector for optimizers created before it; most of these are
    PyTorch's own. Nothing is frozen if an optimizer exists already, because the loop may use it.
    """
    gc.collect()
    if any(issubclass(type(one), Optimizer) for one in gc.get_objects()):
        yield
        return
    frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
