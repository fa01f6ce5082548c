"""Sketches in the place of gradients: what they know of a norm, what a run shows by them, and what they hold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import Page, pages
from torch import nn
from watching import found, watch_source

import gradcheck_accum
from gradcheck_accum.cli import main
from gradcheck_accum.engine.tolerance import CONFIDENCE, sketched_norm
from gradcheck_accum.report.as_json import verify_json
from gradcheck_accum.results.verdict import Verdict, VerifyResult, WindowReport
from gradcheck_accum.run_options import MemoryBudget, OptionError, memory_budget
from gradcheck_accum.verify import observe
from gradcheck_accum.verify.book import holding
from gradcheck_accum.verify.vectors import sketch
from gradcheck_accum.verify.vectors.sketch import BUCKETS, Sketcher

# What a sketch knows


def shapes() -> dict[str, torch.Tensor]:
    """Gradients that a bucket for each column, or one for each row, would know nothing of; and usual ones."""
    torch.manual_seed(0)
    one_row, one_column = torch.zeros(64, 768), torch.zeros(64, 768)
    one_row[5], one_column[:, 5] = torch.randn(768), torch.randn(64)
    heavy = torch.randn(50_000) * torch.rand(50_000).pow(-0.4)
    outer = torch.randn(90, 1) * torch.randn(1, 512).pow(3)
    constant = torch.ones(40, 1024)
    return {"row": one_row, "column": one_column, "heavy": heavy, "outer": outer, "constant": constant}


@pytest.mark.parametrize("name", ["row", "column", "heavy", "outer", "constant"])
def test_a_norm_lies_within_the_bounds_that_its_sketch_gives_it(name: str) -> None:
    gradient = shapes()[name]
    true = float(gradient.double().norm())
    # A place of its own draws other signs and buckets: so many independent sketches of one gradient.
    sketcher = Sketcher()
    norms = [float(sketcher.of(place, gradient).norm()) for place in range(150)]
    bounds = [sketched_norm(norm) for norm in norms]
    assert all(each.low < true < each.high for each in bounds)
    squares = [(norm / true) ** 2 - 1 for norm in norms]
    assert abs(math.fsum(squares) / len(squares)) < 0.03
    assert math.sqrt(math.fsum(s * s for s in squares) / len(squares)) < math.sqrt(2 / 512)


def test_a_sketch_of_a_small_gradient_is_exact() -> None:
    torch.manual_seed(0)
    parameters = [torch.randn(30, 31), torch.randn(94)]
    assert sum(p.numel() for p in parameters) == BUCKETS
    vectors = [[torch.randn_like(p) for p in parameters] for _ in range(2)]
    sketcher = Sketcher()
    products = sketcher.products([sketcher.of_vector(v, parameters) for v in vectors], parameters)
    apart = torch.cat([(a - 0.3 * b).flatten() for a, b in zip(*vectors, strict=True)]).double().norm()
    assert not products.sampled
    assert products.combined_norm([(0, 1.0), (1, -0.3)]) == pytest.approx(float(apart), rel=1e-6)


def test_a_multiple_of_a_gradient_is_known_exactly() -> None:
    torch.manual_seed(0)
    parameters = [torch.randn(300, 41), torch.randn(7)]
    own = [p * 0.7 for p in parameters]
    sketcher = Sketcher()
    products = sketcher.products([sketcher.of_vector(v, parameters) for v in (parameters, own)], parameters)
    assert products.sampled
    assert products.norm(1) / products.norm(0) == pytest.approx(0.7, rel=1e-6)
    assert products.combined_norm([(0, 0.7), (1, -1.0)]) < 1e-6 * products.norm(0)


def test_sketches_are_the_same_in_every_process_and_for_every_layout() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(211, 300)
    first, second = Sketcher(), Sketcher()
    assert torch.equal(first.of(11, gradient), second.of(99, gradient.t().contiguous().t()))
    assert torch.equal(first.of(11, gradient), torch.zeros(BUCKETS, dtype=torch.float64) + first.of(11, gradient))
    sparse = torch.zeros(3000).scatter(0, torch.tensor([5, 2048]), 1.5).to_sparse()
    assert torch.equal(first.of(12, sparse), first.of(12, sparse.to_dense()))


@pytest.mark.parametrize("elements", [131_073, 131_072 + 1_500, 2 * 131_072 + 3])
def test_the_last_element_is_in_the_sketch_however_few_elements_are_read_last(elements: int) -> None:
    gradient = torch.zeros(elements)
    gradient[-1] = 3.0
    sketcher = Sketcher()
    assert [float(sketcher.of(parameter, gradient).norm()) for parameter in range(12)] == [3.0] * 12


def test_a_complex_gradient_is_sketched_as_its_parts() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(2000, dtype=torch.complex64)
    norm = float(Sketcher().of(0, gradient).norm())
    bounds = sketched_norm(norm)
    assert bounds.low < float(gradient.norm()) < bounds.high


# What a run shows by them

ROWS, WIDTH, COEFFICIENT = 5, 90, 0.7


class Loop:
    """Three windows of 3 micro-batches on 16,380 weights; each hook changes what it is named after."""

    def __init__(
        self,
        *,
        rows: Sequence[int] = (ROWS,) * 3,
        divisor: float = 3.0,
        scaler: bool = False,
        dtype: torch.dtype = torch.float32,
        optimizer: str = "SGD",
        before_step: Callable[[nn.Module], object] | None = None,
        after_backward: Callable[[torch.optim.Optimizer], object] | None = None,
        set_to_none: bool = True,
        width: int = WIDTH,
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)).to(dtype)
        self.optimizer: torch.optim.Optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), lr=0.01)
        self.rows, self.divisor, self.dtype, self.width = rows, divisor, dtype, width
        self.scaler = torch.amp.GradScaler("cpu", enabled=scaler)
        self.before_step, self.after_backward, self.set_to_none = before_step, after_backward, set_to_none
        self.gradients: list[list[torch.Tensor]] = []
        """What each backward added, in float64, as the loop itself sees it."""

    def loss(self, rows: int) -> torch.Tensor:
        return COEFFICIENT * self.model(torch.randn(rows, self.width, dtype=self.dtype)).square().mean()

    def __call__(self) -> None:
        for _ in range(3):
            for rows in self.rows:
                loss = self.loss(rows) / self.divisor
                self.scaler.scale(loss).backward()
                if self.after_backward is not None:
                    self.after_backward(self.optimizer)
            if self.before_step is not None:
                self.scaler.unscale_(self.optimizer)
                self.before_step(self.model)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=self.set_to_none)


def judged(loop: Callable[[], object], reference: Any = "sketch", **options: Any) -> VerifyResult:
    with observe(reference=reference, loss_coefficient=COEFFICIENT, **options) as observation:
        loop()
    return observation.result()


def clip(model: nn.Module) -> None:
    assert nn.utils.clip_grad_norm_(model.parameters(), 1e-4) > 1e-3


def clip_values(model: nn.Module) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 1e-5)


def scale(model: nn.Module, factor: float = 0.2) -> None:
    for parameter in model.parameters():
        parameter.grad.mul_(factor)


RIGHT: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"before_step": clip},
    "clipped by value": {"before_step": clip_values},
    "scaled and clipped": {"divisor": 0.6, "before_step": lambda model: (scale(model), clip(model))},
    "cleared to zeros": {"set_to_none": False},
    "with a grad scaler": {"scaler": True},
    "unscaled and clipped": {"scaler": True, "before_step": clip, "optimizer": "AdamW"},
    "in bfloat16": {"dtype": torch.bfloat16},
    "in float64": {"dtype": torch.float64},
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loop_is_equivalent(name: str) -> None:
    result = judged(Loop(**RIGHT[name]))
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    assert (result.diagnosis, result.reference.mode, result.reference.confidence) == ((), "sketch", CONFIDENCE)
    for window in result.windows:
        assert window.weights == pytest.approx([1.0] * 3, rel=1e-6)
        assert window.within is not None and window.grad_rel_error is not None and window.tolerance is not None
        assert window.within[0] <= window.grad_rel_error <= window.within[1] <= window.tolerance


def recorded(loop: Loop) -> list[list[torch.Tensor]]:
    """What every micro-batch of a loop's first window adds where it is not divided, in float64, without any of ours."""
    twin = Loop(rows=loop.rows, dtype=torch.float32, width=loop.width)
    found = []
    for rows in loop.rows:
        gradients = torch.autograd.grad(twin.loss(rows), list(twin.model.parameters()))
        found.append([g.double() for g in gradients])
    return found


def combined(gradients: Sequence[Sequence[torch.Tensor]], weights: Sequence[float]) -> torch.Tensor:
    together = [sum(w * g for w, g in zip(weights, own, strict=True)) for own in zip(*gradients, strict=True)]
    return torch.cat([part.flatten() for part in together])


MISTAKES: dict[str, tuple[dict[str, Any], str, list[float], list[float]]] = {
    # (what is wrong, its code, the weights of the micro-batches in .grad, and the right ones)
    "unscaled": ({"divisor": 1.0}, "GA101", [1, 1, 1], [1 / 3] * 3),
    "scaled twice": ({"divisor": 9.0}, "GA102", [1 / 9] * 3, [1 / 3] * 3),
    "zeroed every time": ({}, "GA201", [0, 0, 1 / 3], [1 / 3] * 3),
    "a mean of means": ({"rows": (3, 5, 7)}, "GA104", [1 / 3] * 3, [3 / 15, 5 / 15, 7 / 15]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_keeps_its_weights_and_its_error_lies_within_its_bounds(name: str) -> None:
    options, code, weights, right = MISTAKES[name]
    loop = Loop(**options)
    if code == "GA201":
        count = iter(range(9))
        loop.after_backward = lambda optimizer: optimizer.zero_grad() if next(count) % 3 < 2 else None
    result = judged(loop)
    gradients = recorded(loop)
    got, wanted = combined(gradients, weights), combined(gradients, right)
    error = float((got - wanted).norm() / wanted.norm())
    first = result.windows[0]
    assert result.verdict is Verdict.DEVIATES
    assert [d.mistake.code for d in result.diagnosis] == [code]
    assert first.weights == pytest.approx([w / r for w, r in zip(weights, right, strict=True)], rel=1e-6, abs=1e-9)
    assert first.within is not None and first.within[0] < error < first.within[1]
    assert first.grad_rel_error == pytest.approx(error, rel=0.2)


def test_an_update_that_is_a_multiple_is_compared() -> None:
    first = judged(Loop(divisor=1.0)).windows[0]
    # Three times the gradient moves SGD's weights three times as far as it should.
    assert first.param_rel_error == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("part", [0.01, 0.03, 0.1])
def test_what_goes_past_the_counters_of_versions_is_seen(part: float) -> None:
    def change(model: nn.Module) -> None:
        model[0].weight.grad.data.mul_(1 + part)

    result = judged(Loop(before_step=change))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "modified manually" in result.reason


def test_gradients_that_were_handed_out_are_followed() -> None:
    loop = Loop()

    def run() -> None:
        parameters = list(loop.model.parameters())
        for _ in range(3):
            for rows in loop.rows:
                gradients = torch.autograd.grad(loop.loss(rows), parameters)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    own = gradient / 3
                    parameter.grad = own if parameter.grad is None else parameter.grad + own
            loop.optimizer.step()
            loop.optimizer.zero_grad()

    result = judged(run)
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    assert all(window.micro_batches == 3 for window in result.windows)


def test_an_error_that_a_sketch_cannot_tell_from_what_is_allowed_is_left_open() -> None:
    loop = Loop(rows=(3, 5, 7))
    gradients = recorded(loop)
    got, wanted = combined(gradients, [1 / 3] * 3), combined(gradients, [3 / 15, 5 / 15, 7 / 15])
    error = float((got - wanted).norm() / wanted.norm())
    for allowed, verdict in ((0.5, Verdict.DEVIATES), (0.98, Verdict.INCONCLUSIVE), (1.02, Verdict.INCONCLUSIVE)):
        first = judged(Loop(rows=(3, 5, 7)), rtol=allowed * error, atol=0.0).windows[0]
        assert first.verdict is verdict, first
    assert "99.9% confidence" in first.reason
    assert judged(Loop(rows=(3, 5, 7)), rtol=2 * error, atol=0.0).windows[0].verdict is Verdict.EQUIVALENT


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketches so short that those of the rule pages' models are none of every element."""
    monkeypatch.setattr(sketch, "BUCKETS", 16)
    monkeypatch.setattr(sketch, "_WIDTHS", (11, 13))
    monkeypatch.setattr(sketch, "_STRETCH", 64)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("page", pages(), ids=lambda page: page.path.stem)
def test_the_catalogue_is_seen_as_the_ledger_sees_it(page: Page, tmp_path: Path) -> None:
    for source in (*page.examples["bad"], *page.examples["good"], *page.examples.get("fixed", [])):
        one, other = (watch_source(source, tmp_path, reference=r) for r in ("sketch", "ledger"))
        assert (one.verdict, found(one)) == (other.verdict, found(other)), (one.reason, other.reason)
        assert [own.weights for own in one.windows] == [own.weights for own in other.windows]


# What was chosen, and why


def test_small_models_are_compared_by_both_references_whatever_is_free() -> None:
    result = judged(Loop(), reference=None, memory_budget=MemoryBudget(1.0))
    assert (result.reference.mode, result.reference.why) == ("both", "")


def test_a_budget_asks_for_sketches() -> None:
    # 320,800 weights in float32 are 1.28 MB, of which both references take three times as much.
    many = {"width": 400}
    roomy = judged(Loop(**many), reference=None, memory_budget=MemoryBudget(4e6))
    tight = judged(Loop(**many), reference=None, memory_budget=MemoryBudget(3e6))
    named = judged(Loop(**many), reference="both", memory_budget=MemoryBudget(3e6))
    assert [r.reference.mode for r in (roomy, tight, named)] == ["both", "sketch", "both"]
    assert {r.verdict for r in (roomy, tight, named)} == {Verdict.EQUIVALENT}
    why = "both references would need 3.85 MB in addition to the loop, and --memory-budget is 3 MB"
    assert tight.reference.why == why
    assert any(why in note and "99.9% confidence" in note for note in tight.notes)
    report = json.loads(verify_json(tight))
    assert report["reference"]["mode"] == "sketch"
    assert report["reference"]["why"] == why
    assert report["reference"]["confidence"] == 0.999
    low, high = report["windows"][0]["grad_rel_error_within"]
    assert low <= report["windows"][0]["grad_rel_error"] <= high


def test_what_is_free_is_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, mode in ((6e6, "both"), (5e6, "sketch")):
        # Of what is free the loop's own gradients take 1.28 MB, and SGD keeps nothing.
        monkeypatch.setattr(holding, "free_memory", lambda device, free=free: free)
        assert judged(Loop(width=400), reference=None).reference.mode == mode
    adam = judged(Loop(width=400, optimizer="AdamW"), reference=None)
    assert adam.reference.why.endswith("and 1.15 MB are free in addition to what it needs itself")
    monkeypatch.setattr(holding, "free_memory", lambda device: None)
    assert judged(Loop(width=400), reference=None).reference.mode == "both"


class Most:
    """Attributes are put back after a reference has run; what an object in them counts is not."""

    rows = 0


class Counting(nn.Module):
    """Knows the most rows that it was ever given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.most = Most()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.most.rows = max(self.most.rows, len(x))
        out: torch.Tensor = self.model(x)
        return out


@pytest.mark.parametrize(("more", "most"), [(30_000, ROWS), (60_000, 2 * ROWS), (200_000, 3 * ROWS)])
def test_a_large_batch_keeps_no_more_than_the_budget_leaves(more: int, most: int) -> None:
    loop = Loop(width=400)
    loop.model = Counting(loop.model)
    # A micro-batch of 5 rows keeps three tensors of 400 numbers a row, 24 kB, and a little more.
    result = judged(loop, reference="both", memory_budget=MemoryBudget(3 * 4 * 320_800 + more))
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    assert loop.model.most.rows == most
    in_chunks = any("would need more memory than there is" in note for note in result.notes)
    assert in_chunks is (most < 3 * ROWS)
    wrong = judged(Loop(width=400, divisor=1.0), memory_budget=MemoryBudget(3 * 4 * 320_800 + more))
    assert [d.mistake.code for d in wrong.diagnosis] == ["GA101"]


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("800MB", MemoryBudget(8e8)),
        ("1.5 GiB", MemoryBudget(1.5 * 2**30)),
        ("4096", MemoryBudget(4096.0)),
        (4096, MemoryBudget(4096.0)),
        ("50%", MemoryBudget(share=0.5)),
    ],
)
def test_a_budget_is_read(text: str | int, budget: MemoryBudget) -> None:
    assert memory_budget(text) == budget


@pytest.mark.parametrize("text", ["", "much", "-1GB", "5 XB", "120%", True, None, "1e3", "iB", "3iB"])
def test_a_budget_that_makes_no_sense_is_refused(text: object) -> None:
    with pytest.raises(OptionError):
        memory_budget(text)


def test_the_command_line_takes_a_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["verify", "--memory-budget", "5 XB", "train.py"]) == 2
    assert "must be a number of bytes" in capfd.readouterr().err
    source = Path("train.py")
    source.write_text(SCRIPT, encoding="utf-8")
    assert main(["verify", "--memory-budget", "1MB", "--output-format", "json", "train.py"]) == 0
    reference = json.loads(capfd.readouterr().out)["reference"]
    assert reference["mode"] == "sketch"
    assert "--memory-budget is 1 MB" in reference["why"]


SCRIPT = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(700, 400)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, x in enumerate(torch.randn(6, 5, 700)):
    loss = model(x).pow(2).mean() / 3
    loss.backward()
    if (i + 1) % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


# What it leaves alone


@pytest.mark.parametrize("options", [{}, {"scaler": True, "before_step": clip, "optimizer": "AdamW"}])
def test_the_loop_is_the_same_bit_for_bit(options: dict[str, Any]) -> None:
    ends = []
    for way in (nullcontext, lambda: observe(reference="sketch")):
        loop = Loop(**options)
        with way():
            loop()
        ends.append([torch.rand(3), *(p.detach() for p in loop.model.parameters())])
    assert all(torch.equal(plain, watched) for plain, watched in zip(*ends, strict=True))


def test_a_watched_run_is_sketched_where_its_model_is_not_small() -> None:
    seen: list[WindowReport] = []
    for width, sampled in ((WIDTH, False), (400, True)):
        with gradcheck_accum.watch(on_window=lambda result: seen.extend(result.windows), loss_coefficient=COEFFICIENT):
            Loop(width=width)()
        assert [w.verdict for w in seen[-3:]] == [Verdict.EQUIVALENT] * 3
        assert all((w.within is not None) is sampled for w in seen[-3:])
    raised = pytest.raises(gradcheck_accum.AccumulationError, match="GA101")
    with raised, gradcheck_accum.watch(loss_coefficient=COEFFICIENT):
        Loop(width=400, divisor=1.0)()


@pytest.mark.parametrize("elements", [0, 1, 1024])
def test_the_sketch_of_a_small_gradient_is_the_gradient_but_for_signs(elements: int) -> None:
    # A rank may hold no element of a sharded weight.
    gradient = torch.randn(elements)
    sketch = Sketcher().of(1, gradient)
    assert torch.equal(sketch.abs(), gradient.double().abs())
