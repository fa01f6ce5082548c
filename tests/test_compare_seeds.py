"""The loops that people show each other, with batch size and K as arguments: compare judges each as verify does.

Some are the loops of fixtures/*.py, and some are like those, but verify leaves them open. They run on 48 rows: windows
of 3 micro-batches of 5, compared with batches of 15, and a remainder of 3 rows.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from loops_with_places import filled
from torch import nn

from gradcheck_accum.comparing import compared_loop
from gradcheck_accum.results.comparison import Compared
from gradcheck_accum.results.verdict import Verdict

pytestmark = pytest.mark.usefixtures("in_float64")

Batch = tuple[torch.Tensor, torch.Tensor]
Loop = Callable[..., None]
ROWS, SIZE, K = 48, 5, 3


class Loader:
    """So many rows in batches of a size, in one order every epoch."""

    def __init__(self, rows: int, size: int) -> None:
        torch.manual_seed(7)
        self._x, self._y, self.size = torch.randn(rows, 4), torch.randint(0, 3, (rows,)), size

    def __len__(self) -> int:
        return -(-len(self._x) // self.size)

    def __iter__(self) -> Iterator[Batch]:
        yield from zip(self._x.split(self.size), self._y.split(self.size), strict=True)


def model_of_3() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


cross_entropy = nn.functional.cross_entropy


COUNTED = """\
def loop(loader, accumulation_steps):
    model = model_of_3()
    optimizer = adam(model)
    for i, (x, y) in enumerate(loader):
        {first}
        loss = cross_entropy(model(x), y)
        (loss / {divisor}).backward()
        {after_backward}
        if {boundary}:
            optimizer.step()
            {after_step}
        {last}
"""
"""A loop that counts its micro-batches, with places to fill."""

CLEAR = "optimizer.zero_grad()"
LAST_TOO = "((i + 1) % accumulation_steps == 0) or (i + 1 == len(loader))"
RIGHT = {
    "divisor": "accumulation_steps",
    "boundary": "(i + 1) % accumulation_steps == 0",
    "after_step": CLEAR,
}
"""What the places hold where there is nothing wrong but the tail, for which nothing steps."""

PLACES: dict[str, dict[str, str]] = {
    "basic_no_flush": {},
    "unscaled": {"divisor": "1"},
    # At K = 1 too nothing is left to step on.
    "zeroed_after_backward": {"divisor": "1", "after_backward": CLEAR, "after_step": "pass"},
    "zeroed_every_batch_unscaled": {"divisor": "1", "first": CLEAR, "after_step": "print(i + 1, loss.item())"},
    "zeroed_at_window_start": {"first": f"if i % accumulation_steps == 0: {CLEAR}", "after_step": "pass"},
    # Neither is it at K = 1.
    "never_zeroed": {"after_step": "pass"},
    "last_batch_misscaled": {"boundary": LAST_TOO},
    "last_batch_zeroed_every_iteration": {"boundary": LAST_TOO, "after_step": "pass", "last": CLEAR},
    "class_trainer_off_by_one": {"boundary": "i % accumulation_steps == 0"},
    "stepped_every_batch": {"boundary": "True"},
}
"""By its name: what a loop does otherwise."""


def counted(name: str, folder: Path) -> Loop:
    """A loop of this name, in a file of its own: verify reads its source."""
    path = folder / f"{name}.py"
    path.write_text(filled(COUNTED, **{**RIGHT, **PLACES[name]}), encoding="utf-8")
    made = {"model_of_3": model_of_3, "adam": adam, "cross_entropy": cross_entropy}
    loop: Loop = runpy.run_path(str(path), init_globals=made)["loop"]
    return loop


def flushed(loader: Loader, accumulation_steps: int) -> None:
    """The tail is divided by its own length."""
    model = model_of_3()
    optimizer = adam(model)
    for _ in range(2):
        for i, (x, y) in enumerate(loader):
            whole = len(loader) // accumulation_steps * accumulation_steps
            window = accumulation_steps if i < whole else len(loader) - whole
            (cross_entropy(model(x), y) / window).backward()
            if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()


def scaled_twice(loader: Loader, accumulation_steps: int) -> None:
    """A mean, divided by K and by the rows."""
    model = model_of_3()
    optimizer = adam(model)
    running = 0.0
    for i, (x, y) in enumerate(loader):
        loss = cross_entropy(model(x), y)
        (loss / accumulation_steps / x.shape[0]).backward()
        running += loss.item() * x.shape[0]
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            running = 0.0


def with_a_checkpoint(loader: Loader, accumulation_steps: int) -> None:
    """Try and except around the step, and no tail."""
    model = model_of_3()
    optimizer = adam(model)
    kept: dict[str, Any] = {}
    for i, (x, y) in enumerate(loader):
        try:
            (cross_entropy(model(x), y) / accumulation_steps).backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
                kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        except RuntimeError as problem:
            if "out of memory" not in str(problem):
                raise
    assert kept


def after_the_loop(rest_by_k: bool, clip: float = 0.0, inside: bool = False) -> Loop:
    """A flush after the loop, divided by K or by what is left; with a clip at the boundary or at every micro-batch."""

    def loop(loader: Loader, accumulation_steps: int) -> None:
        model, count = model_of_3(), 0
        optimizer = adam(model)

        def step() -> None:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()

        left = len(loader) % accumulation_steps
        for i, (x, y) in enumerate(loader):
            is_rest = not rest_by_k and i >= len(loader) - left
            loss = cross_entropy(model(x), y) / (left if is_rest else accumulation_steps)
            loss.backward()
            count += 1
            if inside:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            if count % accumulation_steps == 0:
                step()
        if count % accumulation_steps:
            step()

    return loop


def amp(clip_first: bool) -> Loop:
    """A gradient scaler, with the clip before or after `unscale_`."""

    def loop(loader: Loader, accumulation_steps: int) -> None:
        model = model_of_3()
        optimizer, scaler = adam(model), torch.amp.GradScaler("cpu", init_scale=256.0)
        for i, (x, y) in enumerate(loader):
            scaler.scale(cross_entropy(model(x), y) / accumulation_steps).backward()
            if (i + 1) % accumulation_steps == 0:
                if not clip_first:
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    return loop


def metrics(loader: Loader, accumulation_steps: int) -> None:
    """Losses and hits gathered next to the accumulation, which are right at any K."""
    model = model_of_3()
    optimizer = adam(model)
    total, hits, rows = 0.0, 0.0, 0
    for i, (x, y) in enumerate(loader):
        scores = model(x)
        loss = cross_entropy(scores, y)
        total += loss.item()
        hits += (scores.argmax(1) == y).sum().item()
        rows += len(y)
        (loss / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def judged(loop: Loop, rows: int) -> tuple[Verdict, Compared]:
    each = [dict(loader=Loader(rows, size), accumulation_steps=k) for size, k in ((SIZE, K), (SIZE * K, 1))]
    result = compared_loop(loop, each)
    assert not result.error, result.error
    (one,) = result.compared
    return result.verdict, one


@pytest.mark.parametrize(
    ("loop", "rows", "verdict", "codes"),
    [
        ("basic_no_flush", ROWS, "deviates", {"GA301"}),
        ("basic_no_flush", 45, "equivalent", set()),
        (flushed, ROWS, "equivalent", set()),
        (scaled_twice, 45, "deviates", {"GA102"}),
        (with_a_checkpoint, ROWS, "deviates", {"GA301"}),
        (with_a_checkpoint, 45, "equivalent", set()),
        ("unscaled", 45, "deviates", {"GA101"}),
        ("zeroed_after_backward", 45, "deviates", {"GA202"}),
        ("zeroed_every_batch_unscaled", 45, "deviates", {"GA101", "GA201"}),
        ("zeroed_at_window_start", 45, "equivalent", set()),
        ("never_zeroed", 45, "deviates", {"GA203"}),
        ("last_batch_misscaled", ROWS, "deviates", {"GA103"}),
        ("last_batch_misscaled", 45, "equivalent", set()),
        ("last_batch_zeroed_every_iteration", ROWS, "deviates", {"GA103", "GA201"}),
        (after_the_loop(rest_by_k=True), ROWS, "deviates", {"GA103"}),
        (after_the_loop(rest_by_k=False), ROWS, "equivalent", set()),
        (after_the_loop(rest_by_k=False, clip=0.3), ROWS, "equivalent", set()),
        (after_the_loop(rest_by_k=False, clip=0.1, inside=True), ROWS, "deviates", {"GA401"}),
        (amp(clip_first=False), 45, "equivalent", set()),
        (metrics, 45, "equivalent", set()),
        ("class_trainer_off_by_one", 45, "deviates", {"GA301", "GA302"}),
        ("stepped_every_batch", 45, "deviates", {"GA304"}),
    ],
)
def test_each_loop_is_judged_by_what_it_does(
    loop: Loop | str, rows: int, verdict: str, codes: set[str], tmp_path: Path
) -> None:
    found, one = judged(counted(loop, tmp_path) if isinstance(loop, str) else loop, rows)
    assert found.value == verdict, one.reason
    assert one.watched is not None
    assert {d.mistake.code for d in one.watched.diagnosis if d.mistake.changes_gradient} == codes
    assert one.differences == ()
