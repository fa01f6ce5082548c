"""Watching a loop in this process."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import torch

from gradcheck_accum.engine.reference import ReferenceEngine
from gradcheck_accum.engine.tape import ScalingNotes
from gradcheck_accum.ledger.stated_names import stated_steps
from gradcheck_accum.ledger.windows import Ledger
from gradcheck_accum.results.acceptance import Acceptance, accepted
from gradcheck_accum.results.stopped import ENOUGH, stopped_early
from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.run_options import MemoryBudget
from gradcheck_accum.settings import settings_for, with_codes
from gradcheck_accum.verify.book.holding import Wanted
from gradcheck_accum.verify.judge.observed_run import ObservedRun
from gradcheck_accum.verify.judge.options import Options
from gradcheck_accum.verify.judge.run import judge_ranks
from gradcheck_accum.verify.measure.trajectory import Trajectory
from gradcheck_accum.verify.stack.frames import is_users_file
from gradcheck_accum.verify.watching.companion import Companion
from gradcheck_accum.verify.watching.observer import Observer
from gradcheck_accum.verify.watching.patches import install
from gradcheck_accum.verify.watching.steps import SeenEnough

ReferenceName = Literal["ledger", "replay", "both", "sketch"]
_USUAL_REFERENCE = "both"


class Observation:
    """What was seen of a loop; its `result` is to be read after the loop has ended."""

    def __init__(self, observer: Observer, options: Options, script: str) -> None:
        self._observer = observer
        self.options = options
        self._script = script
        self.complete = False
        """Whether the loop ended by itself, so that what is left over was really lost."""

    def result(self) -> VerifyResult:
        """The verdict on all that has been seen so far."""
        result = self.judged()[0]
        return stopped_early(result, ENOUGH) if self.has_seen_enough else result

    @property
    def has_seen_enough(self) -> bool:
        """Whether the loop is stopped because as many steps were seen as are wanted."""
        return self._observer.steps.have_been_seen

    def judged(self) -> tuple[VerifyResult, Ledger]:
        """The verdict on all that has been seen so far, and the ledger that it is based on."""
        seen = self.seen()
        ledger = seen.ledger()
        return judge_ranks([seen], self._script, self.options, [ledger]), ledger

    def ledger(self) -> Ledger:
        """The ledger of all that has been seen so far."""
        return self.seen().ledger()

    def seen(self) -> ObservedRun:
        """All that has been seen so far."""
        return ObservedRun.of(self._observer, complete=self.complete)


@contextmanager
def observe(
    *,
    reference: ReferenceName | None = None,
    memory_budget: MemoryBudget | None = None,
    max_windows: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    loss_coefficient: float | None = None,
    accumulation_steps: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    trajectory: bool = False,
    script: str = "the loop",
    on_step: Callable[[int], object] | None = None,
    companion: Companion | None = None,
) -> Iterator[Observation]:
    """Watch every training loop that runs inside the block; it is not changed by being watched.

        with observe() as observation:
            train(model, loader, optimizer)
        print(observation.result().verdict)

    ``reference`` chooses what the gradients are compared with: by default both references, where ``memory_budget`` or
    what is free allows that, and sketches where it does not (`gradcheck_accum.verify.book.holding`). ``dtype`` and
    ``device`` are where references are computed (by default as the loop does), ``max_windows`` is how many steps are
    watched before the block is left. ``accumulation_steps`` is K, where it is known: else the windows and the loss show
    it. ``rtol`` and ``atol`` (given both or neither) replace the derived tolerance. ``trajectory`` trains a reference
    alongside on true large batches, from the same start, and reports how far the weights drift from it; it needs the
    replay. ``on_step`` is called after every step with their number so far; a ``companion`` goes along with the run.
    Raises ValueError for options that do not fit.
    """
    options = Options(loss_coefficient, rtol, atol, replay_alone=reference == "replay")
    if trajectory and reference in ("ledger", "sketch"):
        raise ValueError("a trajectory needs the replay reference")
    engine = ReferenceEngine(_device(device), _dtype(dtype))
    wanted = Wanted("both" if trajectory else reference, budget=memory_budget)
    observer = Observer(wanted=wanted, engine=engine, max_windows=max_windows, companion=companion)
    observer.steps.accumulation_steps = accumulation_steps
    observer.steps.on_step = on_step
    observer.comparer.loss_coefficient = loss_coefficient
    if trajectory:
        observer.comparer.trajectory = Trajectory(engine)
    observation = Observation(observer, options, script)
    with nullcontext() if companion is None else companion.along(observer.run.losses.tape), installed(observer):
        try:
            yield observation
            observer.loop_over()
            observation.complete = True
        except SeenEnough:
            observation.complete = False
        finally:
            if companion is not None:
                companion.over(observer.run.awaited.left_over())


@contextmanager
def installed(observer: Observer) -> Iterator[None]:
    """Inside the block ``observer`` is notified of what PyTorch does."""
    with ExitStack() as stack:
        stack.callback(observer.arrivals.release)
        install(observer, stack, modules=observer.run.losses.records)
        observer.adopt_existing()
        tape = observer.run.losses.tape
        mode = tape if observer.run.losses.records else ScalingNotes(tape)
        stack.enter_context(observer.run.attention.listening(mode))
        yield


def judged(
    loop: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], **options: Any
) -> VerifyResult:
    """What ``loop(*args, **kwargs)`` comes to, called once under `observe` with ``options``.

    A keyword argument with a name of K (`gradcheck_accum.ledger.stated_names`) states it.
    """
    name, steps = getattr(loop, "__qualname__", "the loop"), stated_steps(kwargs)
    with observe(script=name, accumulation_steps=steps, **options) as observation:
        loop(*args, **kwargs)
    return observation.result()


def checked(
    loop: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    select: Iterable[str] | None,
    ignore: Iterable[str] | None,
    **options: Any,
) -> VerifyResult:
    """What `judged` says of a loop, without what has been accepted in its project, or by ``select`` and ``ignore``.

    Raises TypeError if an argument of the loop has the name of one of ours that is given, and SettingsError.
    """
    given = {"select": select, "ignore": ignore, **options}
    names = [name for name, value in given.items() if value not in (None, _USUAL_REFERENCE)]
    _refuse_clashes(loop, args, kwargs, names)
    acceptance = acceptance_at(file_of(loop), select=select, ignore=ignore)
    return accepted(judged(loop, args, kwargs, **options), acceptance)


def acceptance_at(file: str, *, select: Iterable[str] | None, ignore: Iterable[str] | None) -> Acceptance:
    """What the project of a user's ``file`` accepts; that of the working directory where it is no file of the user's.

    Raises SettingsError.
    """
    home = file if is_users_file(file) and os.path.isfile(file) else os.curdir
    return Acceptance(with_codes(settings_for([home]).of_verify(), select=select, ignore=ignore))


def _refuse_clashes(
    loop: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], names: Sequence[str]
) -> None:
    """Raise TypeError for options of ours that may be meant for arguments of the loop, unless these have a value."""
    try:
        signature = inspect.signature(loop)
        given = {*signature.bind_partial(*args, **kwargs).arguments, *getattr(loop, "keywords", ())}
    except (TypeError, ValueError):
        return  # nothing says what it takes, or the call will say what is wrong with it
    for name in names:
        if name in signature.parameters and name not in given:
            raise TypeError(
                f"'{name}' is an argument of both the check and the loop: pass the loop's own with functools.partial, "
                "or by position"
            )


def file_of(loop: Callable[..., object]) -> str:
    """The file that a loop was written in, as far as that is known."""
    while isinstance(loop, functools.partial):
        loop = loop.func
    code = getattr(inspect.unwrap(loop), "__code__", None) or getattr(type(loop).__call__, "__code__", None)
    return code.co_filename if code is not None else ""


def _device(name: str | None) -> torch.device | None:
    if name is None:
        return None
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name} cannot be used: PyTorch has no device type of that name") from None
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        # PyTorch's own words are a screen of its backends, or of how CUDA is debugged.
        raise ValueError(f"device {name} cannot be used: PyTorch has no such device here") from None
    return device


def _dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"{name} is not a floating-point dtype of torch")
    return found
