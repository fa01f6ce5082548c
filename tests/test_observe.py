"""Watching a loop in this process: what is counted, numbered and named, on loops small enough to check by hand."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe


def data(samples: int, batch_size: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return DataLoader(TensorDataset(torch.randn(samples, 3), torch.randint(0, 3, (samples,))), batch_size=batch_size)


def watched(loop: Callable[[], object], **options: object) -> VerifyResult:
    with observe(**options) as observation:  # type: ignore[arg-type]
        loop()
    return observation.result()


def codes(result: VerifyResult) -> list[str]:
    return [d.mistake.code for d in result.diagnosis]


def test_a_leak_is_seen_in_every_epoch() -> None:
    # Three micro-batches of an epoch, K = 2: every second window begins with what an epoch left over.
    loader, model = data(6, 2), nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop() -> None:
        for _ in range(20):
            for i, (x, y) in enumerate(loader):
                (cross_entropy(model(x), y) / 2).backward()
                if (i + 1) % 2 == 0:
                    optimizer.step()
                    optimizer.zero_grad()

    result = watched(loop)
    (leak,) = result.diagnosis
    assert leak.mistake.code == "GA301"
    assert leak.windows == tuple(range(1, 20))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_error_and_norm_ratio_are_those_of_plain_arithmetic(dtype: torch.dtype) -> None:
    model = nn.Linear(3, 3).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(n, 3, dtype=dtype), torch.randint(0, 3, (n,))) for n in (1, 5)]
    twin = copy.deepcopy(model).double()

    def loop() -> None:
        for x, y in batches:
            (cross_entropy(model(x), y) / 2).backward()
        optimizer.step()

    result = watched(loop)
    x, y = torch.cat([x for x, _ in batches]).double(), torch.cat([y for _, y in batches])
    right = torch.cat([g.flatten() for g in torch.autograd.grad(cross_entropy(twin(x), y), list(twin.parameters()))])
    got = torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])
    (window,) = result.windows
    assert result.verdict is Verdict.DEVIATES
    assert codes(result) == ["GA104"]
    assert window.weights == pytest.approx((3.0, 0.6))
    assert window.grad_rel_error == pytest.approx(float((got - right).norm() / right.norm()), rel=1e-5)
    assert window.grad_norm_ratio == pytest.approx(float(got.norm() / right.norm()), rel=1e-5)


def test_a_gan_is_right_though_the_generators_loss_fills_the_discriminators_gradients() -> None:
    torch.manual_seed(0)
    generator, discriminator = nn.Linear(2, 3), nn.Linear(3, 1)
    of_g = torch.optim.Adam(generator.parameters())
    of_d = torch.optim.Adam(discriminator.parameters())
    judge = nn.BCEWithLogitsLoss()

    def loop() -> None:
        for x, _ in data(12, 4):
            fake = generator(torch.randn(4, 2))
            of_d.zero_grad()
            judge(discriminator(x), torch.ones(4, 1)).backward()
            judge(discriminator(fake.detach()), torch.zeros(4, 1)).backward()
            of_d.step()
            of_g.zero_grad()
            judge(discriminator(fake), torch.ones(4, 1)).backward()
            of_g.step()

    result = watched(loop)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, [])


def test_a_model_that_couples_its_batch_is_not_equivalent_by_construction() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop() -> None:
        for i, (x, y) in enumerate(data(16, 4)):
            (cross_entropy(model(x), y) / 2).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()

    result = watched(loop)
    assert result.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION
    assert "BatchNorm1d" in result.reason
    assert result.exit_status == 3


def test_what_cannot_be_compared_is_inconclusive_with_the_reason() -> None:
    class Deaf(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)

    model = nn.Linear(3, 3)
    optimizer = Deaf(model.parameters(), lr=0.1)
    (x, y), *_ = data(4, 4)

    def loop() -> None:
        cross_entropy(model(x), y).backward()
        optimizer.step(lambda: 0.0)

    result = watched(loop)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "closure" in result.reason


def test_a_clip_that_hides_a_missing_division_does_not_pass() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop() -> None:
        for i, (x, y) in enumerate(data(16, 4)):
            cross_entropy(model(x), y).backward()
            if i % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                optimizer.step()
                optimizer.zero_grad()

    result = watched(loop)
    assert (result.verdict, codes(result)) == (Verdict.DEVIATES, ["GA101"])
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([2.0, 2.0])


def test_the_report_names_where_and_in_what_it_compared() -> None:
    model = nn.Linear(3, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop() -> None:
        for x, y in data(8, 4):
            optimizer.zero_grad()
            cross_entropy(model(x.double()), y).backward()
            optimizer.step()

    result = watched(loop, reference="ledger")
    assert (result.device, result.reference.dtype, result.reference.device) == ("cpu", "float64", "cpu")
    assert "replay" not in result.reference.kind


def test_tolerances_are_given_both_or_neither() -> None:
    with pytest.raises(ValueError, match="both or neither"), observe(rtol=1e-3):
        pass


def large_batch_run(optimizer_class: type[torch.optim.Optimizer], windows: int, **options: float) -> list[torch.Tensor]:
    """The weights after every step of training on the true large batches, with a schedule that halves the rate."""
    model = start()
    optimizer = optimizer_class(model.parameters(), **options)  # type: ignore[call-arg]
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    x, y = drawn()
    weights = []
    for k in range(windows):
        optimizer.zero_grad()
        cross_entropy(model(x[8 * k : 8 * k + 8]), y[8 * k : 8 * k + 8]).backward()
        optimizer.step()
        schedule.step()
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return weights


def start() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(3, 3)


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(32, 3, generator=generator), torch.randint(0, 3, (32,), generator=generator)


@pytest.mark.parametrize("divisor", [1, 2])
@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.Adam])
def test_the_trajectory_drifts_as_far_as_a_run_on_large_batches_says(
    divisor: int, optimizer_class: type[torch.optim.Optimizer]
) -> None:
    model = start()
    optimizer = optimizer_class(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    seen: list[torch.Tensor] = []
    x, y = drawn()

    def loop() -> None:
        for i in range(8):
            (cross_entropy(model(x[4 * i : 4 * i + 4]), y[4 * i : 4 * i + 4]) / divisor).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]))

    result = watched(loop, trajectory=True)
    first = torch.cat([p.detach().flatten() for p in start().parameters()])
    right = large_batch_run(optimizer_class, 4, lr=0.1)
    drift = [float((got - ref).norm() / (ref - first).norm()) for got, ref in zip(seen, right, strict=True)]
    assert [w.drift for w in result.windows] == pytest.approx(drift, rel=1e-3, abs=1e-5)
    if divisor == 1 and optimizer_class is torch.optim.Adam:
        assert any("Adam masks most of the error" in note for note in result.notes)


def test_a_trajectory_needs_the_replay() -> None:
    with pytest.raises(ValueError, match="needs the replay"), observe(reference="ledger", trajectory=True):
        pass


def test_what_accumulation_buys_is_measured() -> None:
    model = nn.Sequential(nn.Linear(3, 1000), nn.ReLU(), nn.Linear(1000, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop() -> None:
        for x, y in data(32, 4):
            (cross_entropy(model(x), y) / 8).backward()
        optimizer.step()

    (note,) = [note for note in watched(loop).notes if "keeps" in note]
    # The ReLU's output, in float32: 32 rows of 1000 in one batch, 4 rows in a micro-batch.
    assert "as one batch, the largest window keeps 12" in note
    assert "as 8 micro-batches, 15." in note


@pytest.mark.parametrize(("planned", "found"), [(8, set()), (4, {"GA601"}), (None, {"GA601"})])
def test_a_schedule_whose_lambda_is_bound_to_its_length(planned: int | None, found: set[str]) -> None:
    def rate(move: int, *, num_training_steps: int = 8) -> float:
        return max(0.0, 1 - move / num_training_steps)

    with observe(reference="ledger") as observation:
        model = start()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        # As the schedules of Transformers are made.
        bound = partial(rate, num_training_steps=planned) if planned else rate
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, bound)
        x, y = drawn()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the schedule moves before the optimizer does
            for i in range(8):
                (cross_entropy(model(x[4 * i : 4 * i + 4]), y[4 * i : 4 * i + 4]) / 2).backward()
                if i % 2:
                    optimizer.step()
                    optimizer.zero_grad()
                schedule.step()
    assert {d.mistake.code for d in observation.result().diagnosis} == found


@pytest.mark.parametrize(
    ("bad", "verdict", "reason"),
    [
        (set(), Verdict.EQUIVALENT, "all 2 steps match the large-batch gradient"),
        ({1}, Verdict.EQUIVALENT, "all 1 steps match the large-batch gradient; the grad scaler skipped 1"),
        ({1, 2}, Verdict.INCONCLUSIVE, "no step was taken: skipped by the grad scaler (inf or nan)"),
    ],
)
def test_only_steps_that_were_taken_count(bad: set[int], verdict: Verdict, reason: str) -> None:
    with observe() as observation:
        model = start()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        x, y = drawn()
        for i in range(4):
            loss = cross_entropy(model(x[4 * i : 4 * i + 4]), y[4 * i : 4 * i + 4]) / 2
            scaler.scale(loss * float("inf") if i in bad else loss).backward()
            if i % 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    result = observation.result()
    assert (result.verdict, result.reason) == (verdict, reason)


@pytest.mark.parametrize("hooked", [False, True])
def test_a_reference_runs_no_hooks_of_the_script_and_shows_no_warnings(hooked: bool) -> None:
    calls, shown = [], 0

    class Warns(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            warnings.warn("each time", stacklevel=1)
            return super().forward(x)

    with warnings.catch_warnings(record=True) as caught, observe() as observation:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        model = Warns(3, 3)
        if hooked:
            model.weight.register_hook(lambda gradient: calls.append(gradient))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, (x, y) in enumerate(data(16, 4)):
            (cross_entropy(model(x), y) / 2).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
        shown = sum(str(warning.message) == "each time" for warning in caught)
    assert observation.result().verdict is Verdict.EQUIVALENT
    assert (len(calls), shown) == (4 * hooked, 4)


def frozen_in_turn(divisor: int) -> Callable[[], None]:
    """A GAN: each network is frozen while the other's loss is computed, and both are stepped at the window's end."""

    def loop() -> None:
        torch.manual_seed(0)
        made, judged = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in (judged, made)]
        for i, (x, _) in enumerate(data(32, 4)):
            made.requires_grad_(False)
            ((judged(x) - judged(made(x))).mean() / divisor).backward()
            made.requires_grad_(True)
            judged.requires_grad_(False)
            (judged(made(x)).square().mean() / divisor).backward()
            judged.requires_grad_(True)
            if i % 2:
                for optimizer in optimizers:
                    optimizer.step()
                for optimizer in optimizers:
                    optimizer.zero_grad()

    return loop


def test_what_one_optimizer_has_moved_is_put_back_where_anothers_loss_is_run_again() -> None:
    right, wrong = watched(frozen_in_turn(2)), watched(frozen_in_turn(1))
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    assert right.reference.kind.count("large batch") and not any("keeps state" in note for note in right.notes)
    assert [w.grad_norm_ratio for w in wrong.windows] == pytest.approx([2.0] * 8, rel=1e-5)
    assert set(codes(wrong)) == {"GA101"}


def test_weights_end_where_they_would_without_watching_when_networks_are_frozen_in_turn() -> None:
    ends = []

    class Kept(torch.optim.SGD):
        def step(self, *args: object) -> None:  # type: ignore[override]
            super().step()
            ends[-1].append(self.param_groups[0]["params"][0].detach().clone())

    for watch in (False, True):
        ends.append([])
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(torch.optim, "SGD", Kept)
            watched(frozen_in_turn(2)) if watch else frozen_in_turn(2)()
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=0)


class Parted(torch.optim.Optimizer):
    """Hands its parameters out to two optimizers, and steps both."""

    def __init__(self, parameters: list[nn.Parameter], before: Callable[[nn.Parameter], object]) -> None:
        super().__init__(parameters, {})
        self.parts = [torch.optim.SGD(parameters[:1], lr=0.1), torch.optim.Adam(parameters[1:], lr=0.1)]
        self.before = before

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for part in self.parts:
            for group in part.param_groups:
                for parameter in group["params"]:
                    self.before(parameter)
            part.step()


def parted_loop(divisor: int, before: Callable[[nn.Parameter], object]) -> VerifyResult:
    def loop() -> None:
        model = nn.Linear(3, 3)
        optimizer = Parted(list(model.parameters()), before)
        for i, (x, y) in enumerate(data(32, 4)):
            (cross_entropy(model(x), y) / divisor).backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

    return watched(loop)


@pytest.mark.parametrize(("divisor", "norms"), [(4, [1.0, 1.0]), (1, [4.0, 4.0])])
def test_an_optimizer_that_steps_others_inside_makes_one_step(divisor: int, norms: list[float]) -> None:
    result = parted_loop(divisor, lambda parameter: None)
    assert [w.optimizer for w in result.windows] == ["Parted", "Parted"]
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx(norms, rel=1e-5)
    assert codes(result) == ([] if divisor == 4 else ["GA101"])


def test_what_an_optimizer_does_to_gradients_before_it_steps_others_is_seen() -> None:
    def divide(parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        parameter.grad /= 4

    result = parted_loop(1, divide)
    assert result.verdict is Verdict.EQUIVALENT
    # Another that is still alive in this process would have the name without a number.
    assert {w.optimizer.partition(" #")[0] for w in result.windows} == {"SGD", "Adam"}


@pytest.mark.parametrize("by_hand", [False, True])
def test_gradients_that_are_cleared_after_a_clip_are_cleared_whoever_clears_them(by_hand: bool) -> None:
    loader, model = data(30, 5), nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop() -> None:
        for i, (x, y) in enumerate(loader):
            (cross_entropy(model(x), y) / 3).backward()
            if (i + 1) % 3 == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                if by_hand:
                    for p in model.parameters():
                        p.grad = None
                else:
                    optimizer.zero_grad()
                optimizer.step()

    result = watched(loop)
    assert (result.verdict, codes(result)) == (Verdict.DEVIATES, ["GA202"])
    assert [window.weights for window in result.windows] == [(0.0,) * 3] * 2
    # Nothing is left of the clipped gradient: the row says so.
    assert [(w.grad_rel_error, w.grad_norm_ratio) for w in result.windows] == [(pytest.approx(1.0), 0.0)] * 2
    assert all((w.tolerance or 0.0) < 1e-5 for w in result.windows)


@pytest.mark.parametrize(("limit", "found"), [(float("inf"), []), (1e-3, ["GA401"])])
def test_measuring_a_norm_is_no_clip(limit: float, found: list[str]) -> None:
    loader, model = data(24, 3), nn.Linear(3, 3)

    def loop() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, (x, y) in enumerate(loader):
            (cross_entropy(model(x), y) / 4).backward()
            nn.utils.clip_grad_norm_(model.parameters(), limit)
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

    result = watched(loop)
    assert codes(result) == found
    assert (result.verdict is Verdict.EQUIVALENT) == (not found)


def test_gradients_that_are_changed_by_hand_after_a_clip_are_not_compared() -> None:
    loader, model = data(30, 5), nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop() -> None:
        for i, (x, y) in enumerate(loader):
            cross_entropy(model(x), y).backward()
            if (i + 1) % 3 == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                for p in model.parameters():
                    assert p.grad is not None
                    p.grad.div_(3)
                optimizer.step()
                optimizer.zero_grad()

    result = watched(loop)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "manually after clipping" in result.reason


def test_functions_that_were_kept_while_watching_do_what_pytorchs_own_do_and_hold_nothing() -> None:
    kept: dict[str, Any] = {}

    def loop() -> weakref.ref[torch.optim.Optimizer]:
        # As a module has them that is imported inside the loop for the first time.
        kept.update(grad=torch.autograd.grad, backward=torch.autograd.backward, clip=nn.utils.clip_grad_norm_)
        kept.update(call=nn.Module.__call__, zero=torch.optim.Optimizer.zero_grad, zero_module=nn.Module.zero_grad)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.ones(3, 2)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weakref.ref(optimizer)

    with observe() as observation:
        optimizer = loop()
    assert observation.result().verdict is Verdict.EQUIVALENT
    del observation
    gc.collect()
    assert optimizer() is None
    model = nn.Linear(2, 1)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    (gradient,) = kept["grad"](kept["call"](model, torch.ones(1, 2)).sum(), [model.bias])
    assert gradient.item() == 1.0
    kept["backward"](model(torch.ones(1, 2)).sum())
    assert kept["clip"](model.parameters(), 1.0) == pytest.approx(3**0.5)
    kept["zero"](own)
    assert model.bias.grad is None
    kept["backward"](model(torch.ones(1, 2)).sum())
    kept["zero_module"](model)
    assert model.bias.grad is None
