"""compare on loops of this process: what is judged, and by how much it is wrong.

The errors that are expected come from float64 arithmetic on the large batches, written out here.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import gradcheck_accum
from gradcheck_accum.comparing import ComparisonError, compared_loop
from gradcheck_accum.comparing.fingerprints import _fingerprints
from gradcheck_accum.engine.tensor_bytes import raw
from gradcheck_accum.results.comparison import CompareResult
from gradcheck_accum.results.verdict import Verdict

pytestmark = pytest.mark.usefixtures("in_float64")

Batch = tuple[torch.Tensor, torch.Tensor]
Loop = Callable[..., None]
MOMENTUM, RATE = 0.9, 0.3


@dataclass
class Data:
    """So many rows for a linear model of 4 inputs and 3 classes."""

    x: torch.Tensor
    y: torch.Tensor

    @classmethod
    def of(cls, rows: int) -> Data:
        torch.manual_seed(7)
        return cls(torch.randn(rows, 4), torch.randint(0, 3, (rows,)))

    def batches(self, size: int) -> list[Batch]:
        return [(self.x[i : i + size], self.y[i : i + size]) for i in range(0, len(self.x), size)]


def model_of_3() -> nn.Module:
    torch.manual_seed(5)
    return nn.Linear(4, 3)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)


def compare(
    loop: Loop, rows: int = 45, of: Sequence[tuple[int, int]] = ((5, 3), (15, 1)), **options: Any
) -> CompareResult:
    """``loop`` on so many rows, in configurations of (batch size, K)."""
    data, model = Data.of(rows), options.pop("model", None) or model_of_3()
    optimizer = sgd(model)
    each = [dict(model=model, optimizer=optimizer, loader=data.batches(b), accumulation_steps=k) for b, k in of]
    before = [p.detach().clone() for p in model.parameters()]
    result = compared_loop(loop, each, **options)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    return result


def right(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int, epochs: int = 1
) -> None:
    for _ in range(epochs):
        for i, (x, y) in enumerate(loader):
            (nn.functional.cross_entropy(model(x), y) / accumulation_steps).backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()


def flushed(model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int) -> None:
    for i, (x, y) in enumerate(loader):
        (nn.functional.cross_entropy(model(x), y) / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()


def errors(result: CompareResult) -> list[float | None]:
    (one,) = result.compared
    return [step.grad_rel_error for step in one.steps]


def verdicts(result: CompareResult) -> list[str]:
    (one,) = result.compared
    return [step.verdict.value for step in one.steps]


def gradient(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = nn.functional.cross_entropy(model(x), y)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def trained(data: Data, sizes: Sequence[int]) -> nn.Module:
    """The model after steps on true large batches of these sizes."""
    model = model_of_3()
    optimizer, start = sgd(model), 0
    for size in sizes:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data.x[start : start + size]), data.y[start : start + size]).backward()
        optimizer.step()
        start += size
    return model


def test_a_right_loop_is_equivalent() -> None:
    result = compare(right)
    assert (result.verdict, result.exit_status) == (Verdict.EQUIVALENT, 0)
    assert verdicts(result) == ["equivalent"] * 3
    assert all(error is not None and error < 1e-13 for error in errors(result))
    assert result.reference is not None
    assert (result.reference.name, result.reference.micro_batches, result.reference.rows) == (
        "accumulation_steps=1",
        1,
        15,
    )


def test_each_configuration_may_have_a_model_and_an_optimizer_of_its_own() -> None:
    data, each = Data.of(30), []
    for size, k in ((5, 3), (15, 1)):
        model = model_of_3()
        each.append(dict(model=model, optimizer=sgd(model), loader=data.batches(size), accumulation_steps=k))
    assert compared_loop(right, each).verdict is Verdict.EQUIVALENT


def test_the_public_door_returns_what_is_right_and_raises_what_is_not() -> None:
    data, model = Data.of(30), model_of_3()

    def undivided(loader: list[Batch], k: int) -> None:
        right(model, optimizer, loader, 1) if k == 1 else sums(model, optimizer, loader, k)

    optimizer = sgd(model)
    fine = [
        dict(model=model, optimizer=optimizer, loader=data.batches(b), accumulation_steps=k)
        for b, k in ((5, 3), (15, 1))
    ]
    assert gradcheck_accum.compare(right, fine).verdict is Verdict.EQUIVALENT
    with pytest.raises(gradcheck_accum.AccumulationError, match="deviates: 2 of 2 steps") as raised:
        gradcheck_accum.compare(undivided, [dict(loader=data.batches(5), k=3), dict(loader=data.batches(15), k=1)])
    assert isinstance(raised.value, ComparisonError)


def sums(model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int) -> None:
    """The loss is not divided."""
    for i, (x, y) in enumerate(loader):
        nn.functional.cross_entropy(model(x), y).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def test_a_loss_that_is_not_divided_is_k_times_too_large_at_every_step() -> None:
    """Momentum would carry the first step's error into the weights of the next: each is judged at equal weights."""
    result = compare(sums)
    assert verdicts(result) == ["deviates"] * 3
    # |3 g - g| / |g|
    assert errors(result) == pytest.approx([2.0] * 3, rel=1e-12)
    (one,) = result.compared
    assert one.watched is not None
    assert [d.mistake.code for d in one.watched.diagnosis] == ["GA101"]


def test_means_of_unequal_micro_batches_deviate_by_as_much_as_arithmetic_says() -> None:
    """Of 43 rows the last 13 come as 5, 5 and 3: three means over 3, where the large batch has one mean of 13."""
    result = compare(flushed, rows=43)
    assert verdicts(result) == ["equivalent", "equivalent", "deviates"]
    data = Data.of(43)
    model = trained(data, [15, 15])
    means = [gradient(model, data.x[a:b], data.y[a:b]) for a, b in ((30, 35), (35, 40), (40, 43))]
    large = gradient(model, data.x[30:], data.y[30:])
    wrong = (means[0] + means[1] + means[2]) / 3 - large
    assert errors(result)[2] == pytest.approx(float(wrong.norm() / large.norm()), rel=1e-9)


def test_a_remainder_that_is_divided_by_k_is_too_small() -> None:
    result = compare(flushed, rows=40)
    # Two means of 5 over 3, where the large batch has one of 10: |2/3 g - g| / |g|.
    assert verdicts(result) == ["equivalent", "equivalent", "deviates"]
    assert errors(result)[2] == pytest.approx(1 / 3, rel=1e-9)


def test_a_remainder_that_reaches_no_step_deviates() -> None:
    result = compare(right, rows=40)
    assert (result.verdict, verdicts(result)) == (Verdict.DEVIATES, ["equivalent"] * 2)
    assert result.reason == (
        "10 rows used by the reference never reached a step; it makes 2 steps in all, the reference 3"
    )


def test_a_remainder_that_leaks_into_the_next_epoch_deviates_and_what_follows_is_compared() -> None:
    def twice(**arguments: Any) -> None:
        right(**arguments, epochs=2)

    result = compare(twice, rows=40)
    assert result.verdict is Verdict.DEVIATES
    assert "from step 2 on, steps have 25 rows where the reference has 10 and 15" in result.reason
    (one,) = result.compared
    assert [(step.index, step.verdict.value) for step in one.steps] == [
        (0, "equivalent"),
        (1, "equivalent"),
        (3, "equivalent"),
    ]


def test_a_first_window_of_one_micro_batch_deviates() -> None:
    def early(model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int) -> None:
        for i, (x, y) in enumerate(loader):
            (nn.functional.cross_entropy(model(x), y) / accumulation_steps).backward()
            if i % accumulation_steps == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()

    result = compare(early)
    assert result.verdict is Verdict.DEVIATES
    assert "steps have 5 and 15 and 15 and 10 rows where the reference has 15 and 15 and 15" in result.reason


def test_gradients_that_are_cleared_every_micro_batch_are_those_of_the_last() -> None:
    def clearing(
        model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int
    ) -> None:
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            (nn.functional.cross_entropy(model(x), y) / accumulation_steps).backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()

    result = compare(clearing, rows=15)
    data, model = Data.of(15), model_of_3()
    large = gradient(model, data.x, data.y)
    wrong = gradient(model, data.x[10:], data.y[10:]) / 3 - large
    assert errors(result) == pytest.approx([float(wrong.norm() / large.norm())], rel=1e-9)
    (one,) = result.compared
    assert one.watched is not None
    assert [d.mistake.code for d in one.watched.diagnosis] == ["GA201"]


def clipped_at(inside: bool) -> Loop:
    """A loop that clips at the step, or at every micro-batch."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int) -> None:
        for i, (x, y) in enumerate(loader):
            (nn.functional.cross_entropy(model(x), y) / accumulation_steps).backward()
            at_step = (i + 1) % accumulation_steps == 0
            if at_step or inside:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if at_step:
                optimizer.step()
                optimizer.zero_grad()

    return loop


def clamping(limit: float) -> Loop:
    """A right loop, but for a hook that clamps what each micro-batch adds: no ledger knows what it should have been."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int) -> None:
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient.clamp(-limit, limit))
        right(model, optimizer, loader, accumulation_steps)

    return loop


def test_a_clip_at_the_step_is_equivalent_and_one_at_every_micro_batch_is_not() -> None:
    assert compare(clipped_at(inside=False)).verdict is Verdict.EQUIVALENT
    result = compare(clipped_at(inside=True))
    assert verdicts(result) == ["deviates"] * 3


def limited_to(limit: Callable[[int], float]) -> Loop:
    """A loop in low precision with a clip by value so tight that it leaves rounding a large part of the gradient."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int) -> None:
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y)
            (loss / accumulation_steps).backward()
            if (i + 1) % accumulation_steps == 0:
                nn.utils.clip_grad_value_(model.parameters(), limit(accumulation_steps))
                optimizer.step()
                optimizer.zero_grad()

    return loop


def test_a_clip_by_value_leaves_the_distance_that_rounding_has_made() -> None:
    assert compare(limited_to(lambda k: 1e-4)).verdict is Verdict.EQUIVALENT
    assert verdicts(compare(limited_to(lambda k: 1e-4 * (1 + k)))) == ["deviates"] * 3


def test_three_configurations_are_compared_with_the_one_of_fewest_micro_batches() -> None:
    result = compare(flushed, of=((5, 3), (15, 1), (3, 5)))
    assert (result.verdict, len(result.compared)) == (Verdict.EQUIVALENT, 2)
    assert [one.configuration.micro_batches for one in result.compared] == [3, 5]


def test_of_three_configurations_the_one_that_is_wrong_is_named() -> None:
    def wrong_at_5(**arguments: Any) -> None:
        (sums if arguments["accumulation_steps"] == 5 else right)(**arguments)

    result = compare(wrong_at_5, of=((5, 3), (15, 1), (3, 5)))
    assert [one.verdict for one in result.compared] == [Verdict.EQUIVALENT, Verdict.DEVIATES]
    assert result.reason.startswith("with accumulation_steps=5: 3 of 3 steps")


def test_other_effective_batches_are_not_compared() -> None:
    result = compare(right, of=((5, 3), (9, 1)))
    assert (result.verdict, result.exit_status) == (Verdict.INCONCLUSIVE, 3)
    assert "differ in effective batch size" in result.reason
    assert "3 micro-batches of 15 rows together, the reference on 1 micro-batch of 9 rows together" in result.reason


def test_configurations_that_are_run_alike_are_not_equivalent() -> None:
    def deaf(model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int) -> None:
        right(model, optimizer, Data.of(45).batches(5), 3)

    result = compare(deaf)
    assert result.exit_status == 3
    assert "the configurations do not differ" in result.reason


def test_other_data_from_a_step_on_is_said_and_what_comes_before_is_compared() -> None:
    def dropping(
        model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int
    ) -> None:
        full = [batch for batch in loader if len(batch[0]) == len(loader[0][0])]
        flushed(model, optimizer, full, accumulation_steps)

    # 40 rows: 15 at a time leave 10 out, 5 at a time none.
    result = compare(dropping, rows=40)
    assert (result.verdict, verdicts(result)) == (Verdict.INCONCLUSIVE, ["equivalent"] * 2)
    assert "it makes 1 step more, on 10 rows that reach no step in the reference" in result.reason


def test_noise_on_the_data_is_other_data_from_the_first_step() -> None:
    def noisy(model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int) -> None:
        torch.manual_seed(accumulation_steps)
        right(model, optimizer, [(x + torch.randn(()), y) for x, y in loader], accumulation_steps)

    result = compare(noisy)
    assert (result.verdict, verdicts(result)) == (Verdict.INCONCLUSIVE, [])
    assert result.reason.startswith("from step 0 on (step 0 of the reference)")
    assert "different rows reach the model" in result.reason


def test_a_loop_that_raises_is_an_error_and_ends_the_others() -> None:
    def raising(**arguments: Any) -> None:
        right(**arguments)
        if arguments["accumulation_steps"] == 3:
            raise ValueError("gone")

    result = compare(raising)
    assert result.exit_status == 2
    assert result.error == "with accumulation_steps=3: the loop raised ValueError: gone"


def test_a_disk_without_room_is_one_line() -> None:
    def without_room(**arguments: Any) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # in a copy of this process
        right(**arguments)

    result = compare(without_room)
    assert result.exit_status == 2
    assert "cannot be written (File too large); set TMPDIR to a folder with room for" in result.error
    assert "\n" not in result.error


def test_a_run_that_cannot_read_the_others_step_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradcheck_accum.comparing.state.State.write", lambda self, path: None)
    result = compare(right)
    assert (result.verdict, result.error) == (Verdict.INCONCLUSIVE, "")
    assert "one of the two runs ended before it was compared" in result.reason


def test_a_loop_that_never_steps_is_inconclusive() -> None:
    def idle(**arguments: Any) -> None:
        """Trains nothing."""

    result = compare(idle)
    assert result.exit_status == 3
    assert "no backward() and no optimizer.step() was observed" in result.reason


def test_one_that_never_steps_ends_the_other() -> None:
    def idle_at_3(**arguments: Any) -> None:
        if arguments["accumulation_steps"] == 1:
            right(**arguments)

    result = compare(idle_at_3)
    assert (result.exit_status, result.reason[:26]) == (3, "with accumulation_steps=3:")


def test_weights_drift_apart_where_configurations_run_freely() -> None:
    result = compare(sums, free=True)
    (one,) = result.compared
    first, *later = one.steps
    assert (result.verdict, first.verdict) == (Verdict.DEVIATES, Verdict.DEVIATES)
    # The first step moves the weights by three times the reference's way.
    assert first.drift == pytest.approx(2.0, rel=1e-9)
    assert {step.verdict for step in later} == {Verdict.INCONCLUSIVE}
    assert all(step.drift is not None and step.drift > 0.1 for step in later)


@pytest.mark.parametrize(
    ("configurations", "message"),
    [([], "two configurations"), ([dict(accumulation_steps=1)], "two configurations")],
)
def test_fewer_than_two_configurations_are_refused(configurations: list[dict[str, object]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gradcheck_accum.compare(right, configurations)


# What no gradient shows


def logging(reads: Callable[[list[torch.Tensor], int, bool], object], *, every_time: bool = False) -> Loop:
    """A right loop that hands the losses of a step to ``reads``, with K, at the step or at every micro-batch."""

    def loop(
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: list[Batch],
        accumulation_steps: int,
    ) -> None:
        losses: list[torch.Tensor] = []
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            losses.append(loss.detach())
            (loss / accumulation_steps).backward()
            at_step = (i + 1) % accumulation_steps == 0
            if at_step:
                optimizer.step()
                optimizer.zero_grad()
            if at_step or every_time:
                reads(losses, accumulation_steps, at_step)
            if at_step:
                losses = []

    return loop


def differences(result: CompareResult) -> list[str]:
    (one,) = result.compared
    return [difference.message for difference in one.differences]


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda losses, k: float(sum(losses)), "3 times too large: as many times as a step has micro-batches"),
        (lambda losses, k: torch.stack(losses).sum().item(), "3 times too large"),
        (lambda losses, k: f"{sum(losses):.3f}", "3 times too large"),
        (lambda losses, k: sum(losses).div(k**2).tolist(), "3 times too small: it is divided by the number"),
        (lambda losses, k: torch.stack(losses).mean().mul(1 if k == 1 else 0.7).item(), "0.7 times the reference's"),
    ],
)
def test_a_loss_that_is_read_k_times_too_large_or_too_small_is_said(
    read: Callable[[list[torch.Tensor], int], object], said: str
) -> None:
    result = compare(logging(lambda losses, k, at_step: read(losses, k)))
    assert (result.verdict, result.exit_status) == (Verdict.EQUIVALENT, 1)
    (message,) = differences(result)
    assert message.startswith(f"the loss that the script reads is {said}")
    assert message.endswith("; the gradient is right")


@pytest.mark.parametrize(
    "loop",
    [
        logging(lambda losses, k, at_step: torch.stack(losses).mean().item()),
        # Whether the script adds these up or takes their mean is not seen: both are the reference's loss.
        logging(lambda losses, k, at_step: losses[-1].item(), every_time=True),
        logging(lambda losses, k, at_step: (losses[-1] / k).item(), every_time=True),
        # No loss: the count of something, and a number of the weights.
        logging(lambda losses, k, at_step: torch.tensor(float(k)).item()),
    ],
    ids=["mean", "each", "each divided", "no loss"],
)
def test_a_loss_that_is_read_right_is_no_difference(loop: Loop) -> None:
    result = compare(loop)
    assert (result.exit_status, differences(result)) == (0, [])
    assert all(not one.notes for one in result.compared)


def looking_at_norms(
    read: Callable[[torch.Tensor], object] = torch.Tensor.item,
    *,
    divides_gradients: bool = False,
    after_division: bool = False,
    every_time: bool = False,
    scaled: bool = True,
) -> Loop:
    """A loop that reads the norm of its gradient, before its clip or before it divides its gradients by K itself."""

    def loop(
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: list[Batch],
        accumulation_steps: int,
    ) -> None:
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            (loss if divides_gradients or not scaled else loss / accumulation_steps).backward()
            at_step = (i + 1) % accumulation_steps == 0
            if (at_step or every_time) and not after_division:
                read(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm())
            if not at_step:
                continue
            for parameter in model.parameters() if divides_gradients else ():
                assert parameter.grad is not None
                parameter.grad.div_(accumulation_steps)
            if after_division:
                read(nn.utils.clip_grad_norm_(model.parameters(), 100.0))
            optimizer.step()
            optimizer.zero_grad()

    return loop


def test_a_gradient_norm_that_is_read_before_the_gradients_are_divided_is_said() -> None:
    result = compare(looking_at_norms(divides_gradients=True))
    assert (result.verdict, result.exit_status) == (Verdict.EQUIVALENT, 1)
    (one,) = result.compared
    assert [(each.kind, each.message) for each in one.differences] == [
        (
            "gradient norm",
            "the gradient norm that the script reads is 3 times too large: as many times as a step has micro-batches; "
            "the gradient is right",
        )
    ]


@pytest.mark.parametrize(
    "loop",
    [
        looking_at_norms(),
        looking_at_norms(float),
        looking_at_norms(after_division=True),
        looking_at_norms(divides_gradients=True, after_division=True),
        # Norms of half a window are no reference's.
        looking_at_norms(every_time=True),
        # It is never read.
        looking_at_norms(lambda norm: None, divides_gradients=True),
    ],
    ids=["itself", "as a number", "of the clip", "after the division", "every time", "not read"],
)
def test_a_gradient_norm_that_is_read_right_is_no_difference(loop: Loop) -> None:
    result = compare(loop)
    assert (result.exit_status, differences(result)) == (0, [])


def test_the_norm_of_a_gradient_that_deviates_is_no_difference_of_its_own() -> None:
    result = compare(looking_at_norms(scaled=False))
    assert (result.verdict, differences(result)) == (Verdict.DEVIATES, [])


def test_the_loss_of_the_last_micro_batch_alone_is_a_note_and_no_mistake() -> None:
    result = compare(logging(lambda losses, k, at_step: losses[-1].item()))
    assert (result.exit_status, differences(result)) == (0, [])
    (one,) = result.compared
    (note,) = one.notes
    assert note.endswith("times the reference's on the same data: it may be the loss of a single micro-batch")


def scheduled(every_batch: bool) -> Loop:
    """A right loop whose learning rate falls at every step, or at every micro-batch."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int) -> None:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for i, (x, y) in enumerate(loader):
            (nn.functional.cross_entropy(model(x), y) / accumulation_steps).backward()
            at_step = (i + 1) % accumulation_steps == 0
            if at_step:
                optimizer.step()
                optimizer.zero_grad()
            if at_step or every_batch:
                scheduler.step()

    return loop


def test_a_learning_rate_that_falls_at_every_micro_batch_is_said() -> None:
    assert differences(compare(scheduled(every_batch=False))) == []
    result = compare(scheduled(every_batch=True))
    assert (result.verdict, result.exit_status) == (Verdict.EQUIVALENT, 1)
    # The first step is made after 2 micro-batches of 3 and after none of 1: 0.3 x 0.9**2.
    assert differences(result) == ["step 0 uses a learning rate of 0.243, the reference 0.3 (3 of 3 steps)"]


# What depends on the cut


def with_dropout() -> nn.Module:
    torch.manual_seed(5)
    # Of one layer alone, the masks of three micro-batches are drawn as those of the large batch are: row by row.
    return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.4), nn.Linear(16, 16), nn.Dropout(0.3), nn.Linear(16, 3))


def test_dropout_is_judged_beside_what_masks_alone_do_and_left_out_where_that_is_asked() -> None:
    result = compare(right, model=with_dropout())
    assert (result.verdict, result.exit_status) == (Verdict.INCONCLUSIVE, 3)
    assert "different random numbers alone change the reference's own gradient" in result.reason
    assert "--no-dropout" in result.help
    without = compare(right, model=with_dropout(), no_dropout=True)
    assert (without.verdict, verdicts(without)) == (Verdict.EQUIVALENT, ["equivalent"] * 3)


def test_a_mistake_far_beyond_what_masks_do_deviates() -> None:
    result = compare(sums, of=((1, 15), (15, 1)), model=with_dropout())
    assert result.verdict is Verdict.DEVIATES
    assert verdicts(result) == ["deviates"] * 3


def test_batch_norm_is_named_and_no_mistake_of_the_loop() -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    result = compare(right, model=model)
    assert (result.verdict, result.exit_status) == (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, 3)
    assert result.reason.startswith("BatchNorm1d uses statistics of all rows of a batch")
    assert compare(sums, model=model).verdict is Verdict.DEVIATES


def test_a_loss_over_the_rows_of_its_batch_is_named() -> None:
    def contrastive(
        model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int
    ) -> None:
        for i, (x, _) in enumerate(loader):
            one, other = model(x), model(x + 1)
            loss = nn.functional.cross_entropy(one @ other.T, torch.arange(len(x)))
            (loss / accumulation_steps).backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    result = compare(contrastive)
    assert result.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION
    assert "indexes the rows of its own batch" in result.reason


def hardest_triplets(embedded: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    apart = torch.cdist(embedded, embedded)
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    farthest = apart.masked_fill(~same, 0.0).amax(1)
    nearest = apart.masked_fill(same, 1e3).amin(1)
    return nn.functional.softplus(farthest - nearest).mean()


@pytest.mark.parametrize("of", [((5, 3), (15, 1)), ((15, 1), (5, 3))])
def test_samples_that_are_compared_with_each_other_are_no_mistake_of_the_loop(of: tuple[tuple[int, int], ...]) -> None:
    def mining(
        model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int
    ) -> None:
        for i, (x, y) in enumerate(loader):
            (hardest_triplets(model(x), y) / accumulation_steps).backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    result = compare(mining, of=of)
    assert (result.verdict, result.exit_status) == (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, 3)
    assert "the samples of a batch influence each other" in result.reason


def test_gradients_that_are_changed_by_hand_deviate_where_samples_are_independent() -> None:
    def weakened(
        model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int
    ) -> None:
        for i, (x, y) in enumerate(loader):
            (nn.functional.cross_entropy(model(x), y) / accumulation_steps).backward()
            if (i + 1) % accumulation_steps == 0:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad[..., 0] *= 1.0 if accumulation_steps == 1 else 0.5
                optimizer.step()
                optimizer.zero_grad()

    result = compare(weakened)
    assert (result.verdict, verdicts(result)) == (Verdict.DEVIATES, ["deviates"] * 3)


def test_a_shuffle_after_dropout_is_still_the_same_stream() -> None:
    """The random numbers that are left after a step are the reference's too: the next epoch is drawn alike."""

    def shuffling(
        model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int
    ) -> None:
        x, y = (torch.cat(own) for own in zip(*loader, strict=True))
        size = len(loader[0][0])
        for _ in range(2):
            order = torch.randperm(len(x))
            parts = [(x[order[i : i + size]], y[order[i : i + size]]) for i in range(0, len(x), size)]
            right(model, optimizer, parts, accumulation_steps)

    result = compare(shuffling, model=with_dropout())
    assert verdicts(result) == ["inconclusive"] * 6


# Sequences


@dataclass
class Sentences:
    """Sentences of 2 to 9 tokens, padded with 0 to the longest of their micro-batch, and the next token as a label."""

    tokens: list[torch.Tensor]

    @classmethod
    def of(cls, count: int) -> Sentences:
        torch.manual_seed(11)
        return cls([torch.randint(2, 12, (int(n),)) for n in torch.randint(2, 10, (count,))])

    def batch(self, start: int, stop: int) -> Batch:
        chosen = self.tokens[start:stop]
        tokens = nn.utils.rnn.pad_sequence(chosen, batch_first=True)
        labels = nn.utils.rnn.pad_sequence([own.roll(-1) for own in chosen], batch_first=True, padding_value=-100)
        return tokens, labels

    def batches(self, size: int) -> list[Batch]:
        return [self.batch(i, i + size) for i in range(0, len(self.tokens), size)]


def words() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Embedding(12, 6), nn.Tanh(), nn.Linear(6, 12))


def token_loss(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), reduction=reduction)


def by_tokens(model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int) -> None:
    """Divides sums by the number of tokens of the whole window."""
    for first in range(0, len(loader), accumulation_steps):
        window = loader[first : first + accumulation_steps]
        count = sum(int((labels != -100).sum()) for _, labels in window)
        for tokens, labels in window:
            (token_loss(model, tokens, labels, "sum") / count).backward()
        optimizer.step()
        optimizer.zero_grad()


def by_means(model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int) -> None:
    """Averages the means of micro-batches, whatever they hold."""
    for i, (tokens, labels) in enumerate(loader):
        (token_loss(model, tokens, labels) / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def compare_sentences(loop: Loop) -> CompareResult:
    sentences, model = Sentences.of(30), words()
    optimizer = sgd(model)
    each = [
        dict(model=model, optimizer=optimizer, loader=sentences.batches(b), accumulation_steps=k)
        for b, k in ((5, 3), (15, 1))
    ]
    assert len({batch[0].shape[1] for batch in sentences.batches(5)}) > 1
    return compared_loop(loop, each)


def test_sentences_that_are_padded_otherwise_are_the_same_data() -> None:
    result = compare_sentences(by_tokens)
    assert (result.verdict, verdicts(result)) == (Verdict.EQUIVALENT, ["equivalent"] * 2)


def test_means_of_unequal_counts_of_tokens_deviate_by_as_much_as_arithmetic_says() -> None:
    result = compare_sentences(by_means)
    assert verdicts(result) == ["deviates"] * 2
    sentences, model = Sentences.of(30), words()

    def gradient_of(start: int, stop: int) -> torch.Tensor:
        loss = token_loss(model, *sentences.batch(start, stop))
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    large = gradient_of(0, 15)
    wrong = (gradient_of(0, 5) + gradient_of(5, 10) + gradient_of(10, 15)) / 3 - large
    assert errors(result)[0] == pytest.approx(float(wrong.norm() / large.norm()), rel=1e-9)
    (one,) = result.compared
    assert one.watched is not None
    assert [d.mistake.code for d in one.watched.diagnosis] == ["GA104"]


def test_other_sentences_of_other_lengths_are_other_data() -> None:
    def other(loader: list[Batch], accumulation_steps: int, **others: Any) -> None:
        changed = [(tokens.clamp(max=10), labels) for tokens, labels in loader]
        by_tokens(
            loader=changed if accumulation_steps == 3 else loader, accumulation_steps=accumulation_steps, **others
        )

    result = compare_sentences(other)
    assert (result.verdict, verdicts(result)) == (Verdict.INCONCLUSIVE, [])


@dataclass
class Shifted(Sentences):
    """The same, each token but the last with the next as its label: cut after padding, as many loops do."""

    def batch(self, start: int, stop: int) -> Batch:
        ids = nn.utils.rnn.pad_sequence(self.tokens[start:stop], batch_first=True)
        return ids[:, :-1], ids[:, 1:].masked_fill(ids[:, 1:] == 0, -100)


def test_tokens_that_are_shifted_after_padding_are_the_same_data() -> None:
    # A 1 is padding too where a row ends with it, as some rows do without their last token.
    sentences = Shifted([torch.where(own == 5, 1, own) for own in Sentences.of(30).tokens])
    # The last token of a sentence is an input in every row but those of the longest.
    inputs = torch.cat([tokens.flatten() for tokens, _ in sentences.batches(5)])
    assert int((inputs != 0).sum()) > sum(len(own) - 1 for own in sentences.tokens)
    model = words()
    each = [
        dict(model=model, optimizer=sgd(model), loader=sentences.batches(b), accumulation_steps=k)
        for b, k in ((5, 3), (15, 1))
    ]
    result = compared_loop(by_tokens, each)
    assert (result.verdict, verdicts(result)) == (Verdict.EQUIVALENT, ["equivalent"] * 2)


@pytest.mark.parametrize(("swapped", "verdict"), [(False, Verdict.EQUIVALENT), (True, Verdict.INCONCLUSIVE)])
def test_few_tokens_of_a_small_vocabulary_are_known_though_they_look_like_masks(
    swapped: bool, verdict: Verdict
) -> None:
    """Of two values alone, like a mask, are all tensors of the second step."""
    torch.manual_seed(2)
    x = torch.cat([torch.randint(0, 12, (15, 3)), torch.tensor([[4, 9, 4], [9, 9, 4]])])
    y = torch.cat([torch.randint(0, 12, (15, 3)), torch.tensor([[9, -100, -100], [-100, 9, -100]])])
    other = torch.cat([x[:15], torch.tensor([[4, 9, 4], [9, 4, 4]])]) if swapped else x
    model = words()
    each = [
        dict(model=model, optimizer=sgd(model), loader=list(zip(own.split(b), y.split(b), strict=True)))
        | dict(accumulation_steps=k)
        for own, b, k in ((other, 5, 3), (x, 15, 1))
    ]
    result = compared_loop(by_tokens, each)
    assert result.verdict is verdict


# What verify does not decide


def test_a_loop_that_verify_leaves_open_is_decided() -> None:
    """A hook clamps each micro-batch's own gradient: what it would do to the large batch's is seen at K = 1 alone."""

    result = compare(clamping(0.02))
    assert result.verdict is Verdict.DEVIATES
    (one,) = result.compared
    assert one.watched is not None
    assert one.watched.verdict is Verdict.INCONCLUSIVE
    # What never clamps is the large batch's gradient all the same.
    assert compare(clamping(1e6)).verdict is Verdict.EQUIVALENT


def test_what_is_computed_in_bfloat16_may_be_off_by_its_rounding() -> None:
    def autocast(
        model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Batch], accumulation_steps: int
    ) -> None:
        model.float()
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x.float()), y)
            (loss / accumulation_steps).backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    result = compare(autocast)
    assert result.verdict is Verdict.EQUIVALENT
    assert any(error is not None and error > 1e-4 for error in errors(result))


def test_labels_that_count_the_rows_of_a_small_batch_by_chance_couple_nothing() -> None:
    torch.manual_seed(7)
    data = Data(torch.randn(12, 4), torch.tensor([0, 1, 2] * 4))
    model = model_of_3()
    optimizer = sgd(model)
    each = [
        dict(model=model, optimizer=optimizer, loader=data.batches(b), accumulation_steps=k)
        for b, k in ((3, 4), (12, 1))
    ]
    assert [y.tolist() for _, y in data.batches(3)] == [[0, 1, 2]] * 4
    assert compared_loop(right, each).verdict is Verdict.EQUIVALENT
    assert compared_loop(clamping(0.02), each).verdict is Verdict.DEVIATES


def two_networks(wrong: bool) -> Callable[..., None]:
    """A generator and a discriminator, each with a step of its own; the generator's loss may be left undivided."""

    def loop(loader: list[Batch], accumulation_steps: int) -> None:
        torch.manual_seed(1)
        maker, judge = nn.Linear(2, 4), nn.Linear(4, 1)
        of_maker, of_judge = (torch.optim.Adam(m.parameters(), 0.01) for m in (maker, judge))
        loss = nn.functional.binary_cross_entropy_with_logits
        for first in range(0, len(loader), accumulation_steps):
            window = [x for x, _ in loader[first : first + accumulation_steps]]
            for x in window:
                real = loss(judge(x), torch.ones(len(x), 1))
                made = loss(judge(maker(x[:, :2]).detach()), torch.zeros(len(x), 1))
                ((real + made) / accumulation_steps).backward()
            of_judge.step()
            of_judge.zero_grad()
            for x in window:
                fooled = loss(judge(maker(x[:, :2])), torch.ones(len(x), 1))
                (fooled if wrong else fooled / accumulation_steps).backward()
            of_maker.step()
            of_maker.zero_grad()
            of_judge.zero_grad()

    return loop


def test_each_of_two_optimizers_is_compared_with_its_own() -> None:
    data = Data.of(30)
    each = [dict(loader=data.batches(b), accumulation_steps=k) for b, k in ((5, 3), (15, 1))]
    assert verdicts(compared_loop(two_networks(wrong=False), each)) == ["equivalent"] * 4
    result = compared_loop(two_networks(wrong=True), each)
    assert verdicts(result) == ["equivalent", "deviates"] * 2
    assert errors(result)[1::2] == pytest.approx([2.0] * 2, rel=1e-9)


def test_rows_are_found_where_time_comes_first() -> None:
    def recurrent(loader: list[Batch], accumulation_steps: int) -> None:
        torch.manual_seed(1)
        model, head = nn.GRU(1, 3), nn.Linear(3, 3)
        optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
        for i, (x, y) in enumerate(loader):
            states, _ = model(x.T.unsqueeze(-1))
            (nn.functional.cross_entropy(head(states[-1]), y) / accumulation_steps).backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    data = Data.of(30)
    each = [dict(loader=data.batches(b), accumulation_steps=k) for b, k in ((5, 3), (15, 1))]
    result = compared_loop(recurrent, each)
    assert (result.verdict, verdicts(result)) == (Verdict.EQUIVALENT, ["equivalent"] * 2)
    assert result.reference is not None
    assert result.reference.rows == 15


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float64, torch.bfloat16])
def test_rows_are_known_without_what_pads_them(dtype: torch.dtype) -> None:
    padded, whole = [[5, 7, 0, 0], [6, 0, 8, 9]], [[5, 7], [6, 2]]
    one, other = (_fingerprints(torch.tensor(rows, dtype=dtype), 2) for rows in (padded, whole))
    assert one[0] == other[0]
    assert one[1] != other[1]
    # A label of 0 is a label.
    zero, seven = _fingerprints(torch.tensor([0, 7], dtype=dtype), 2)
    assert zero != seven


def test_rows_are_known_however_they_lie_in_memory() -> None:
    numbers = torch.arange(30.0).reshape(6, 5)
    # One column has a stride of 5 where there is one element: contiguous, and no view as bytes.
    for tensor in (numbers[:, 1:2], numbers.T[:3], numbers[2:3, 2:3], numbers[4, 4], torch.zeros(6, 0)):
        assert raw(tensor).tobytes() == tensor.numpy().tobytes()
    assert _fingerprints(numbers[:, 1:2], 6) == _fingerprints(numbers[:, 1].clone(), 6)
    assert _fingerprints(numbers[2:3, 1:2], 1) == _fingerprints(numbers[2, 1].clone(), 1)
