"""What watching holds: the bytes of all tensors that are alive, as PyTorch's allocator counts them, and no clock."""

from __future__ import annotations

import gc
import json
import math
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tiny_runs import TinyLoop, calls_of
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

import gradcheck_accum
from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.report.as_json import verify_json
from gradcheck_accum.report.paint import Paint
from gradcheck_accum.report.verify_table import table
from gradcheck_accum.report.verify_text import verify_text
from gradcheck_accum.results.verdict import ReferenceReport, Verdict, VerifyResult, WindowReport
from gradcheck_accum.verify import observe
from gradcheck_accum.verify.vectors.sketch import BUCKETS, Sketcher

BETWEEN = "between two windows"
WIDTH, LAYERS = 512, 12
"""Twelve layers, so that what is made of one parameter at a time is little compared with all of them."""


class Loop:
    """Windows of 3 micro-batches; what is done to the gradients at their end is what a test asks about."""

    def __init__(
        self,
        *,
        optimizer: str = "SGD",
        dtype: torch.dtype = torch.float32,
        clear: Callable[[torch.optim.Optimizer], object] = lambda optimizer: optimizer.zero_grad(),
        change: Callable[[nn.Module], object] | None = None,
        divisor: float = 3.0,
        windows: int = 2,
        zeroed: bool = False,
        scaler: bool = False,
        rows: tuple[int, ...] = (5, 5, 5),
        spoil: Callable[[nn.Module], object] | None = None,
        **settings: Any,
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(dtype)
        self.size = sum(p.nbytes for p in self.model.parameters())
        self.optimizer: torch.optim.Optimizer = getattr(torch.optim, optimizer)(
            self.model.parameters(), lr=0.01, **settings
        )
        self.clear, self.change, self.dtype, self.divisor, self.windows = clear, change, dtype, divisor, windows
        self.spoil, self.rows, self.zeroed = spoil, rows, zeroed
        self.scaler = torch.amp.GradScaler("cpu", enabled=scaler)

    def __call__(self, windows: int | None = None) -> None:
        for _ in range(windows or self.windows):
            for rows in self.rows:
                loss = self.model(torch.randn(rows, WIDTH, dtype=self.dtype)).square().mean() / self.divisor
                if self.zeroed:
                    self.optimizer.zero_grad()
                self.scaler.scale(loss).backward()
                del loss
            if self.spoil is not None:
                self.spoil(self.model)
            if self.change is not None:
                self.scaler.unscale_(self.optimizer)
                self.change(self.model)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.clear(self.optimizer)
            with record_function(BETWEEN):
                pass


@dataclass
class Alive:
    """Bytes of the tensors that are alive in a run, in copies of its gradients: at most, and between its windows."""

    most: float
    between: float


def alive(loop: Loop, way: Callable[[], AbstractContextManager[Any]]) -> Alive:
    """What is alive while ``loop`` runs, beyond what was before."""
    with way(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        loop()
    return counted(seen, loop)


def counted(seen: profile, loop: Loop) -> Alive:
    """What a profile has seen alive."""
    events = sorted(seen.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    now, most, between = 0, 0, 0
    for event in events:
        now += event.nbytes() if event.name() == "[memory]" else 0
        most = max(most, now)
        between = max(between, now if event.name() == BETWEEN else 0)
    return Alive(most / loop.size, between / loop.size)


def more(way: Callable[[], AbstractContextManager[Any]], **options: Any) -> Alive:
    """How much more is alive in a watched run than in the plain one."""
    found = []
    for one in (nullcontext, way):
        loop = Loop(**options)
        loop(1)  # the optimizer's own state is there
        found.append(alive(loop, one))
    return Alive(found[1].most - found[0].most, found[1].between - found[0].between)


def ledger() -> AbstractContextManager[Any]:
    return observe(reference="ledger")


def sketches() -> AbstractContextManager[Any]:
    Sketcher().of(0, torch.zeros(2 * BUCKETS))  # the signs, as many for a model of any size
    return observe(reference="sketch")


def clip(model: nn.Module) -> None:
    assert nn.utils.clip_grad_norm_(model.parameters(), 1e-4) > 1e-3


def clip_values(model: nn.Module) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 1e-5)


def scale(model: nn.Module, factor: float = 0.7) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def scale_and_clip(model: nn.Module) -> None:
    scale(model, 0.25)
    clip(model)


@pytest.mark.parametrize(
    ("optimizer", "change"),
    [("SGD", None), ("AdamW", clip), ("SGD", clip_values), ("SGD", scale), ("SGD", scale_and_clip)],
)
def test_the_ledger_holds_one_copy_of_the_gradients(
    optimizer: str, change: Callable[[nn.Module], object] | None
) -> None:
    found = more(ledger, optimizer=optimizer, change=change)
    # A stretch of a gradient at a time is computed again, in float64 where it is multiplied.
    assert found.most < 1.2
    assert found.between < 0.01


@pytest.mark.parametrize(("fused", "change"), [(False, clip), (True, None)], ids=["unscaled before", "by the step"])
def test_a_grad_scaler_takes_no_other_copy(fused: bool, change: Callable[[nn.Module], object] | None) -> None:
    found = more(ledger, optimizer="AdamW", change=change, scaler=True, fused=fused)
    assert found.most < 1.2
    assert found.between < 0.01


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"dtype": torch.bfloat16}, []),
        ({"rows": (3, 5, 7)}, ["GA104"]),
        ({"zeroed": True, "dtype": torch.bfloat16}, ["GA201"]),
        ({"zeroed": True}, ["GA201"]),
    ],
)
def test_further_parts_and_low_precision_take_no_other_copy(options: dict[str, Any], code: list[str]) -> None:
    seen = []

    @contextmanager
    def judged() -> Iterator[None]:
        Sketcher().of(0, torch.zeros(2 * BUCKETS))
        with observe(reference="ledger") as observation:
            yield
        seen.append(observation.result())

    found = more(judged, **options)
    assert [d.mistake.code for d in seen[0].diagnosis] == code
    assert seen[0].verdict is (Verdict.DEVIATES if code else Verdict.EQUIVALENT)
    assert found.most < 1.2
    assert found.between < 0.05


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "AdamW", "change": clip, "scaler": True},
        {"change": clip_values},
        {"dtype": torch.bfloat16},
        {"rows": (3, 5, 7)},
    ],
)
@pytest.mark.parametrize("way", [sketches, lambda: (sketches(), gradcheck_accum.watch(on_deviation="warn"))[1]])
def test_sketches_take_no_copy_at_all(way: Callable[[], AbstractContextManager[Any]], options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = more(way, **options)
    # Some numbers for each of 24 tensors, and a stretch of one at a time.
    assert found.most < 0.2
    assert found.between < 0.1


def test_gradients_that_are_cleared_to_zeros_are_not_copied() -> None:
    found = more(ledger, clear=lambda optimizer: optimizer.zero_grad(set_to_none=False))
    assert found.most < 1.2
    assert found.between < 0.01


def test_gradients_that_are_cleared_by_hand_are_not_copied() -> None:
    def clear(optimizer: torch.optim.Optimizer) -> None:
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.zero_()

    # That it was done shows when the next backward begins.
    assert more(ledger, clear=clear).most < 1.2


def test_a_wrong_update_is_measured_on_samples_of_the_weights() -> None:
    seen: list[torch.Tensor] = []

    def limit(model: nn.Module) -> None:
        seen.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double())
        nn.utils.clip_grad_value_(model.parameters(), 1e-5)

    loop = Loop(divisor=1.0, change=limit)
    with observe(reference="ledger", loss_coefficient=1.0) as observation:
        loop()
    result = observation.result()
    used, wanted = seen[0].clamp(-1e-5, 1e-5), (seen[0] / 3).clamp(-1e-5, 1e-5)
    error = float((used - wanted).norm() / wanted.norm())
    assert result.windows[0].verdict is Verdict.DEVIATES
    assert 0.05 < error < 1.9
    assert result.windows[0].param_rel_error == pytest.approx(error, rel=0.02)
    assert len([note for note in result.notes if "randomly drawn elements of the weights" in note]) == 1


class Own(torch.optim.SGD):
    """What it does is unknown."""


def test_an_optimizer_that_is_not_known_is_not_compared_on_samples() -> None:
    loop = Loop(divisor=1.0)
    loop.optimizer = Own(loop.model.parameters(), lr=0.01)
    with observe(reference="ledger", loss_coefficient=1.0) as observation:
        loop()
    result = observation.result()
    assert (result.verdict, result.windows[0].param_rel_error) == (Verdict.DEVIATES, None)
    assert any(note.startswith("updates of Own are not compared") for note in result.notes)


def test_samples_take_nothing_from_the_loops_random_numbers() -> None:
    ends = []
    for way in (nullcontext, ledger):
        loop = Loop(divisor=1.0, optimizer="AdamW")
        with way():
            loop()
        ends.append([torch.rand(3), *(p.detach() for p in loop.model.parameters())])
    assert all(torch.equal(plain, watched) for plain, watched in zip(*ends, strict=True))


def test_replayed_batches_are_not_kept_and_not_copied() -> None:
    found = more(lambda: observe(loss_coefficient=1.0))
    # The sum of what arrived, the large batch's gradient, and that of its largest micro-batch while costs are measured.
    assert found.most < 3.1
    assert found.between < 0.01


def test_nothing_is_held_of_windows_that_are_not_watched() -> None:
    # The watch goes to sleep at a step, while the gradients are there.
    sketches()
    assert more(lambda: gradcheck_accum.watch(every=4), windows=6).between < 0.01


def test_gradients_from_before_the_first_watched_window_are_not_held() -> None:
    loop = Loop(clear=lambda optimizer: None)
    loop(1)
    watched = gradcheck_accum.watch(every=16)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen, watched, record_function(BETWEEN):
        pass
    assert counted(seen, loop).most < 0.01


@pytest.mark.parametrize("windows", [6, 22])
def test_nothing_that_computed_losses_is_held_of_windows_that_are_not_watched(windows: int) -> None:
    # Nor does the tape go on for as long as nothing listens.
    held = more(lambda: gradcheck_accum.watch(every=20, reference="both"), windows=windows)
    assert held.between < 0.01


def kept_of(windows: int, reference: Any) -> int:
    """The bytes that Python's own objects take more after so many windows than after the first 100."""
    loop = TinyLoop(4)
    with observe(reference=reference):
        loop(100)
        tracemalloc.start()
        try:
            loop(windows)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize(("reference", "most"), [("ledger", 0.5), ("sketch", 0.5), ("both", 1.2)])
def test_a_window_of_a_long_run_keeps_little(reference: str, most: float) -> None:
    """What is kept once, however long the run is, is not a window's: over many of them it is negligible."""
    # As many windows as are packed at a time, 13 times.
    assert (kept_of(372, reference) - kept_of(60, reference)) / 312 < most * 1024


@pytest.mark.slow
def test_judging_a_run_of_twice_the_windows_takes_twice_the_work() -> None:
    work = []
    for windows in (60, 120):
        loop = TinyLoop(4)
        with observe(reference="ledger") as observation:
            loop(windows)
        work.append(calls_of(observation.result))
    assert work[1] < 2.2 * work[0]


def test_a_report_on_many_windows_lists_every_kind_of_them() -> None:
    loop = TinyLoop(4)
    with observe(reference="ledger") as observation:
        loop(60)
        (nn.functional.mse_loss(loop.model(torch.ones(5, 3)), torch.ones(5, 2)) / loop.k).backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        loop(60)
    result = observation.result()
    shown = table(result.windows, Paint(False), 120)
    assert len(shown) < 12
    odd = [line for line in shown if line.lstrip().startswith("60 ")]
    assert len(odd) == 1 and "deviates" in odd[0]


def windows_of(count: int, *, alike: bool) -> tuple[WindowReport, ...]:
    """Right windows and every 7th wrong, of the same weights or each of its own; one of another kind is alone."""
    found = []
    for index in range(count):
        wrong = index % 7 == 3
        weight = (1.5 if alike else 1 + index / count) if wrong else 1.0
        verdict = Verdict.DEVIATES if wrong else Verdict.EQUIVALENT
        row = WindowReport(index, "SGD", 3, 15.0, (weight, 1.0, 1.0), 0.3 * wrong, weight, 1e-6, None, verdict, line=9)
        found.append(row)
    odd = count // 2
    found[odd] = replace(found[odd], verdict=Verdict.INCONCLUSIVE, reason="nobody knows")
    return tuple(found)


@pytest.mark.parametrize("alike", [True, False])
def test_a_report_on_20_000_windows_is_short_and_lists_every_kind(alike: bool) -> None:
    sizes = []
    for count in (2_000, 20_000):
        result = VerifyResult(
            "train.py",
            Verdict.DEVIATES,
            "some",
            "cpu",
            ReferenceReport("ledger", "float32", "cpu"),
            windows_of(count, alike=alike),
            (Diagnosis(CATALOGUE["GA104"], Location("train.py", 9), "uneven", "", windows=tuple(range(3, count, 7))),),
        )
        told = json.loads(verify_json(result))
        assert told["windows_in_all"] == count
        assert len(told["windows"]) + sum(w.get("more_like_it", 0) for w in told["windows"]) == count
        verdicts = {w["verdict"] for w in told["windows"]}
        assert verdicts == {"equivalent", "deviates", "inconclusive"}
        assert [w["index"] for w in told["windows"] if w["verdict"] == "inconclusive"] == [count // 2]
        (diagnosis,) = told["diagnosis"]
        assert len(diagnosis["windows"]) <= 1000
        assert diagnosis.get("windows_in_all", len(diagnosis["windows"])) == len(range(3, count, 7))
        text = verify_text(result)
        assert len(text.splitlines()) < 40
        assert all(word in text for word in ("equivalent", "deviates", "nobody knows"))
        sizes.append(len(verify_json(result)))
    assert sizes[1] < 600_000
    assert sizes[1] < 1.3 * sizes[0]


def test_a_step_that_the_scaler_skips_leaves_nothing_behind() -> None:
    def overflow(model: nn.Module) -> None:
        next(model.parameters()).grad[0] = math.inf

    assert more(ledger, change=None, scaler=True, spoil=overflow, windows=4).between < 0.01
