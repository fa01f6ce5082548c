"""Data that is normalized inside its micro-batch, and the look-alikes that are not: masks, counts, rows by themselves.

The right weights of the micro-batches are computed here in float64, from the weights and masks themselves.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from watching import trained

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

K, ROWS, WINDOWS = 3, 5, 2

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def batches(*, total: float | None = None) -> list[Batch]:
    """Micro-batches of inputs, targets and weights, which add up to ``total`` in each where that is given."""
    torch.manual_seed(1)
    drawn = [(torch.randn(ROWS, 6), torch.randn(ROWS), torch.rand(ROWS) + 0.1) for _ in range(K * WINDOWS)]
    return drawn if total is None else [(x, y, w / w.sum() * total) for x, y, w in drawn]


def codes(result: VerifyResult) -> set[str]:
    return {diagnosis.mistake.code for diagnosis in result.diagnosis}


def errors(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x).squeeze(-1) - y) ** 2


# Weights


def by_sum(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (w / w.sum() * errors(model, x, y)).sum()


def by_mean(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (errors(model, x, y) * (w / w.mean())).mean()


def by_rows(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (w / w.sum() * len(w) * errors(model, x, y)).mean()


def by_norm(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (F.normalize(w, p=1, dim=0) * errors(model, x, y)).sum()


def in_place(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    own = w.clone()
    own /= own.sum()
    return (own * errors(model, x, y)).sum()


def afterwards(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (w * errors(model, x, y) / w.sum()).sum()


def as_a_product(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.dot(w / w.sum(), errors(model, x, y))


def in_the_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    scores = model(x).squeeze(-1)
    return F.binary_cross_entropy_with_logits(scores, (y > 0).to(scores.dtype), weight=w / w.mean())


NORMALISED = [by_sum, by_mean, by_rows, by_norm, in_place, afterwards, as_a_product, in_the_loss]


def weights_of(data: list[Batch]) -> list[float]:
    """The relative weight of a unit of each micro-batch of the first window."""
    sums = [float(w.double().sum()) for *_, w in data[:K]]
    return [sum(sums) / (K * own) for own in sums]


@pytest.mark.parametrize("loss", NORMALISED)
def test_weights_that_add_up_to_one_in_each_micro_batch_are_a_mean_of_means(loss: Loss) -> None:
    data = batches()
    expected = weights_of(data)
    assert max(expected) > 1.1
    result = trained(network(), data, loss)
    assert (result.verdict, codes(result)) == (Verdict.DEVIATES, {"GA104"}), result.reason
    assert result.windows[0].weights == pytest.approx(expected, rel=1e-5)
    assert result.windows[0].units == pytest.approx(sum(float(w.double().sum()) for *_, w in data[:K]), rel=1e-5)


@pytest.mark.parametrize("loss", NORMALISED)
def test_weights_with_equal_sums_are_right(loss: Loss) -> None:
    result = trained(network(), batches(total=2.3), loss)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set()), result.reason
    assert "as one large batch" in result.reference.kind


@pytest.mark.parametrize("loss", [by_sum, by_mean])
def test_weights_that_are_not_divided_by_k_are_too_large(loss: Loss) -> None:
    result = trained(network(), batches(total=2.3), loss, scale=1)
    assert (result.verdict, codes(result)) == (Verdict.DEVIATES, {"GA101"}), result.reason


@pytest.mark.parametrize("has_graph", [True, False])
def test_a_softmax_over_the_rows_counts_exponentials(has_graph: bool) -> None:
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(has_graph):
            share = torch.softmax(1.7 * w.detach(), 0)
        return (share * errors(model, x, y)).sum()

    data = batches()
    exponentials = [(x, y, (1.7 * w.double()).exp()) for x, y, w in data]
    result = trained(network(), data, loss)
    assert (result.verdict, codes(result)) == (Verdict.DEVIATES, {"GA104"}), result.reason
    assert result.windows[0].weights == pytest.approx(weights_of(exponentials), rel=1e-5)


def queries() -> list[Batch]:
    """Lists of unlike lengths, each with a number for every item that says how relevant it is."""
    torch.manual_seed(4)
    lengths = (4, 7, 3, 6, 5, 8)
    return [(torch.randn(n, 6), torch.randn(n), torch.randn(n)) for n in lengths]


def listwise(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return -(w.softmax(0) * F.log_softmax(model(x).squeeze(-1), 0)).sum()


def test_the_distribution_that_one_softmax_is_compared_with_counts_no_units() -> None:
    result = trained(network(), queries(), listwise)
    # Whether the rows of a list are samples is not known.
    assert (result.verdict, codes(result)) == (Verdict.INCONCLUSIVE, set()), result.reason
    assert [window.weights for window in result.windows] == [pytest.approx((1.0, 1.0, 1.0))] * WINDOWS


def of_unlike_lengths() -> list[Batch]:
    """Sequences that cannot be concatenated, with weights whose sums are equal."""
    data = batches(total=2.3)
    return [(torch.randn(ROWS, 4 + i, 6), y, w) for i, (_, y, w) in enumerate(data)]


def over_time(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (w / w.sum() * (model(x).squeeze(-1).mean(1) - y) ** 2).sum()


def test_weights_beside_data_that_cannot_be_put_together_are_proven() -> None:
    result = trained(network(), of_unlike_lengths(), over_time)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set()), result.reason


# Data that each row's share of depends on the others


def standardised(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x).squeeze(-1), (y - y.mean()) / y.std())


def standardised_in_place(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    own = y.clone()
    own -= own.mean()
    own /= own.std()
    return F.mse_loss(model(x).squeeze(-1), own)


def inputs_standardised(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return errors(model, (x - x.mean(0)) / x.std(0), y).mean()


def by_the_largest(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (w / w.max() * errors(model, x, y)).mean()


@pytest.mark.parametrize("loss", [standardised, standardised_in_place, inputs_standardised, by_the_largest])
def test_data_that_is_normalised_over_its_micro_batch_couples_samples(loss: Loss) -> None:
    result = trained(network(), batches(), loss)
    assert (result.verdict, codes(result)) == (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, {"GA901"}), result.reason
    assert "normalizes data of its loss over its own rows" in result.windows[0].reason


def test_normalised_data_that_cannot_be_put_together_is_not_proven_right() -> None:
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(model(x).squeeze(-1).mean(1), (y - y.mean()) / y.std())

    result = trained(network(), of_unlike_lengths(), loss)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "was normalized over the rows of its micro-batch" in result.reason


# What is no finding


def rows_alone(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return errors(model, x / x.norm(dim=1, keepdim=True), y).mean()


def features(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return errors(model, F.normalize(centred, dim=1) / 255, y).mean()


def plainly_weighted(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (w * errors(model, x, y)).mean()


def with_statistics_beside(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    print(f"targets of {y.mean():.3f} on average, at most {y.max():.3f}")
    return errors(model, x, y).mean()


def evaluated_beside(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        scores = model(x)
        shown = (scores - scores.mean()) / scores.std()
        shown /= shown.norm()
        print(f"{torch.softmax(shown, 0).max():.3f}")
    return errors(model, x, y).mean()


def drawn_beside(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    kept = torch.rand_like(w / w.sum()) > 0.3
    return (errors(model, x, y) * kept).mean()


def with_weights_of_classes(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    of_classes = torch.tensor([1.0, 2.5])
    of_classes = of_classes / of_classes.sum()
    scores = torch.cat([model(x), -model(x)], 1)
    return F.cross_entropy(scores, (y > 0).long(), weight=of_classes, reduction="none").mean()


def with_padding(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    lengths = (6 * w).long().clamp(1, 5)
    places = (torch.arange(int(lengths.max()))[None] < lengths[:, None]).float()
    return errors(model, x * F.pad(places, (0, 6 - places.shape[1])) / lengths[:, None], y).mean()


def with_advice(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        kept = (torch.softmax(x, -1).max(-1).values > 0.4).float()
    return (errors(model, x, y) * kept).mean()


BY_THEMSELVES = [
    *(rows_alone, features, plainly_weighted, with_statistics_beside, evaluated_beside, drawn_beside),
    *(with_weights_of_classes, with_padding, with_advice),
]


@pytest.mark.parametrize("loss", BY_THEMSELVES)
def test_data_whose_rows_are_treated_by_themselves_is_right(loss: Loss) -> None:
    result = trained(network(), batches(), loss)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set()), result.reason


def plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return errors(model, x, y).mean()


def of_the_data_set() -> Iterator[Batch]:
    """Standardised and weighted over all that there is, before the first micro-batch."""
    x, y, w = map(torch.cat, zip(*batches(), strict=True))
    x, y, w = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std(), w / w.mean()
    yield from zip(x.split(ROWS), y.split(ROWS), w.split(ROWS), strict=True)


def by_the_first_batch() -> Iterator[Batch]:
    """Standardised by what the first batch tells."""
    data = batches()
    mean, std = data[0][1].mean(), data[0][1].std()
    yield from ((x, (y - mean) / std, w) for x, y, w in data)


def by_a_running_mean() -> Iterator[Batch]:
    """Centred by a mean that moves on with every batch."""
    mean = torch.tensor(0.0)
    for x, y, w in batches():
        mean = 0.9 * mean + 0.1 * y.mean()
        yield x, y - mean, w


@pytest.mark.parametrize("source", [of_the_data_set, by_the_first_batch, by_a_running_mean])
@pytest.mark.parametrize("loss", [plain, plainly_weighted])
def test_data_that_was_normalised_over_more_than_its_micro_batch_is_right(
    source: Callable[[], Iterator[Batch]], loss: Loss
) -> None:
    result = trained(network(), source(), loss)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set()), result.reason


def window_by_window() -> Iterator[Batch]:
    """Weights that add up to one in every window."""
    data = batches()
    for first in range(0, len(data), K):
        window = data[first : first + K]
        total = sum(w.sum() for *_, w in window)
        yield from ((x, y, w / total) for x, y, w in window)


def test_weights_that_add_up_to_one_in_a_window_are_right() -> None:
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (w * errors(model, x, y)).sum()

    result = trained(network(), window_by_window(), loss, scale=1)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set()), result.reason


# Masks: the units of a sum are the places that they leave


def masked(*, whole: bool = False) -> list[Batch]:
    """Sequences with a mask of their places; each leaves as many where it is ``whole``."""
    torch.manual_seed(3)
    drawn = [(torch.randn(ROWS, 4, 6), torch.randn(ROWS, 4), torch.rand(ROWS, 4) < 0.6) for _ in range(K * WINDOWS)]
    return [(x, y, torch.arange(4 * ROWS).view(ROWS, 4) < 13) for x, y, _ in drawn] if whole else drawn


def over_its_places(model: nn.Module, x: torch.Tensor, y: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    return (errors(model, x, y) * m).sum() / m.sum()


def over_its_places_as_numbers(model: nn.Module, x: torch.Tensor, y: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    return (m.float() * errors(model, x, y)).sum() / m.float().sum()


def chosen(model: nn.Module, x: torch.Tensor, y: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    return errors(model, x, y)[m].sum() / m.sum()


def inside_the_sum(model: nn.Module, x: torch.Tensor, y: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    return (errors(model, x, y) * m / m.sum()).sum()


MASKED = [over_its_places, over_its_places_as_numbers, chosen, inside_the_sum]


@pytest.mark.parametrize("loss", MASKED)
def test_a_masked_mean_counts_what_its_mask_leaves(loss: Loss) -> None:
    data = masked()
    left = [int(m.sum()) for *_, m in data[:K]]
    result = trained(network(), data, loss)
    assert (result.verdict, codes(result)) == (Verdict.DEVIATES, {"GA104"}), result.reason
    assert result.windows[0].units == sum(left)
    assert result.windows[0].weights == pytest.approx([sum(left) / (K * own) for own in left])
    (found,) = result.diagnosis
    assert ", ".join(map(str, left)) in found.message


@pytest.mark.parametrize("loss", MASKED)
def test_masks_that_leave_as_many_places_are_right(loss: Loss) -> None:
    result = trained(network(), masked(whole=True), loss)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set()), result.reason
    assert result.windows[0].units == 13 * K


def over_its_window() -> Iterator[Batch]:
    """Masks, each with the places that its window's leave."""
    data = masked()
    for first in range(0, len(data), K):
        window = data[first : first + K]
        total = torch.stack([m.sum() for *_, m in window]).sum()
        yield from ((x, torch.stack([y, total.expand_as(y)]), m) for x, y, m in window)


def test_a_sum_over_what_the_windows_masks_leave_counts_them() -> None:
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return (errors(model, x, y[0]) * m).sum() / float(y[1, 0, 0])

    left = [int(m.sum()) for *_, m in masked()]
    result = trained(network(), over_its_window(), loss, scale=1)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set()), result.reason
    assert [window.units for window in result.windows] == [sum(left[:K]), sum(left[K:])]
    assert not any("divided by" in note for note in result.notes)


def test_a_masked_sum_over_all_places_counts_all_of_them() -> None:
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return (errors(model, x, y) * m).sum() / m.numel()

    right, wrong = trained(network(), masked(), loss), trained(network(), masked(), loss, scale=1)
    assert (right.verdict, right.windows[0].units) == (Verdict.EQUIVALENT, K * ROWS * 4)
    assert (wrong.verdict, codes(wrong)) == (Verdict.DEVIATES, {"GA101"})


# What it leaves behind


def test_what_data_was_made_of_is_let_go() -> None:
    model, seen = network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe():
        for i, (x, y, w) in enumerate(batches() * 3):
            own = y.clone()
            seen.append(weakref.ref(own))
            (standardised(model, x, own, w) / K).backward()
            norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
            gradients = [weakref.ref(p.grad) for p in model.parameters()]  # type: ignore[arg-type]
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
                # Who keeps their norm keeps no gradients.
                assert norm > 0 and not any(gradient() is not None for gradient in gradients)
        del own
        gc.collect()
        held = [reference() for reference in seen[:-K]]
    assert held == [None] * len(held)
