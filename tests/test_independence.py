"""What `equivalent` rests on where no large batch can be assembled: a proof that samples are independent.

The gradients of the true large batches are worked out here, in float64, by the losses themselves on all samples at once
or on each sample alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from watching import trained

from gradcheck_accum.engine.program import Program
from gradcheck_accum.engine.samples import Samples
from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

K, ROWS = 3, 5

Batch = tuple[torch.Tensor, ...]
Loss = Callable[..., torch.Tensor]


def network(outputs: int, *more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *more, nn.Tanh(), nn.Linear(8, outputs))


def batches(sizes: Sequence[int]) -> list[Batch]:
    torch.manual_seed(1)
    return [(torch.randn(n, 6), torch.randn(n, 6), torch.rand(n), torch.randint(0, 2, (n,))) for n in sizes]


def gradient(model: nn.Module, batch: Sequence[torch.Tensor], loss: Loss) -> torch.Tensor:
    """The gradient of one loss in float64, in one piece."""
    exact = copy.deepcopy(model).double()
    own = [part.double() if part.is_floating_point() else part for part in batch]
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss(exact, *own), list(exact.parameters()))])


def distance_of_the_first_window(model: nn.Module, data: Sequence[Batch], loss: Loss) -> float:
    """How far the mean of micro-batches' gradients is from the large batch's, as a part of its norm."""
    window = data[:K]
    together = torch.stack([gradient(model, batch, loss) for batch in window]).mean(0)
    large = gradient(model, [torch.cat(parts) for parts in zip(*window, strict=True)], loss)
    return float((together - large).norm() / large.norm())


def codes(result: VerifyResult) -> set[str]:
    return {diagnosis.mistake.code for diagnosis in result.diagnosis}


# Losses with the size of their batch written into what they make in addition to their data.


def simclr(model: nn.Module, x: torch.Tensor, other: torch.Tensor, _: torch.Tensor, __: torch.Tensor) -> torch.Tensor:
    rows = len(x)
    views = F.normalize(torch.cat([model(x), model(other)]), dim=1)
    alike = (views @ views.T / 0.5).masked_fill(torch.eye(2 * rows, dtype=torch.bool), -1e9)
    return F.cross_entropy(alike, torch.arange(2 * rows).roll(rows))


def batch_hard(model: nn.Module, x: torch.Tensor, _: torch.Tensor, __: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    codes = model(x)
    apart = (codes[:, None] - codes[None]).pow(2).sum(-1)
    same = y[:, None] == y[None]
    return F.relu((apart * same).max(1).values - (apart + 1e3 * same).min(1).values + 0.3).mean()


def ranknet(
    model: nn.Module, x: torch.Tensor, _: torch.Tensor, relevance: torch.Tensor, __: torch.Tensor
) -> torch.Tensor:
    scores = model(x).squeeze(1)
    better = (relevance[:, None] > relevance[None]).to(scores.dtype)
    return F.binary_cross_entropy_with_logits(scores[:, None] - scores[None], better)


def cox(model: nn.Module, x: torch.Tensor, _: torch.Tensor, time: torch.Tensor, __: torch.Tensor) -> torch.Tensor:
    hazard = model(x).squeeze(1)[time.argsort(descending=True)]
    return -(hazard - torch.logcumsumexp(hazard, 0)).sum() / len(x)


def mmd(model: nn.Module, x: torch.Tensor, other: torch.Tensor, _: torch.Tensor, __: torch.Tensor) -> torch.Tensor:
    a, b = model(x), model(other)

    def kernel(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.exp(-(u[:, None] - v[None]).pow(2).sum(-1)) @ torch.ones(len(v), 1, dtype=u.dtype) / len(v)

    return kernel(a, a).mean() + kernel(b, b).mean() - 2 * kernel(a, b).mean()


def concordance(
    model: nn.Module, x: torch.Tensor, _: torch.Tensor, wanted: torch.Tensor, __: torch.Tensor
) -> torch.Tensor:
    found = model(x).squeeze(1)
    together = ((found - found.mean()) * (wanted - wanted.mean())).mean()
    spread = found.var(unbiased=False) + wanted.var(unbiased=False)
    return 1 - 2 * together / (spread + (found.mean() - wanted.mean()) ** 2)


COUPLED = [(simclr, 4), (batch_hard, 4), (ranknet, 1), (cox, 1), (mmd, 3), (concordance, 1)]


@pytest.mark.parametrize(("loss", "outputs"), COUPLED, ids=lambda c: getattr(c, "__name__", ""))
@pytest.mark.parametrize("sizes", [[7] * 6, [5, 4, 7, 6, 4, 5]], ids=["equal", "unequal"])
@pytest.mark.parametrize("reference", ["both", "replay"])
def test_a_loss_over_pairs_of_samples_is_never_equivalent(
    loss: Loss, outputs: int, sizes: list[int], reference: str
) -> None:
    model, data = network(outputs), batches(sizes)
    assert distance_of_the_first_window(model, data, loss) > 0.02
    result = trained(model, data, loss, reference=reference)
    if loss is concordance and len({*sizes}) > 1:
        # One number of all rows, which no mean is taken over: each micro-batch may be one sample.
        assert (result.verdict, codes(result)) == (Verdict.INCONCLUSIVE, set()), result.reason
        return
    assert (result.verdict, codes(result)) == (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, {"GA901"}), result.reason


@pytest.mark.parametrize("sizes", [[7] * 6, [5, 4, 7, 6, 4, 5]], ids=["equal", "unequal"])
def test_a_coupled_loss_that_is_not_divided_still_deviates(sizes: list[int]) -> None:
    # Units that differ are none of its mistakes: to count them would repair nothing.
    result = trained(network(4), batches(sizes), simclr, scale=1)
    assert (result.verdict, codes(result)) == (Verdict.DEVIATES, {"GA101"}), result.reason


# Losses of samples that are treated one by one, though they cannot be concatenated.


def padded(count: int = 6, rows: int = ROWS) -> list[Batch]:
    torch.manual_seed(2)
    return [(torch.randn(rows, 4 + i, 6), torch.randint(0, 3, (rows,))) for i in range(count)]


def mean_over_time(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).mean(1), y)


def size_written_in(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rows = len(x)
    likely = model(x).mean(1).log_softmax(1).view(rows, 3)
    return -likely[torch.arange(rows), y].sum() / rows


@pytest.mark.parametrize(
    ("loss", "rows"), [(mean_over_time, 1), (mean_over_time, 2), (mean_over_time, ROWS), (size_written_in, ROWS)]
)
def test_padded_to_other_lengths_is_equivalent_by_proof(loss: Loss, rows: int) -> None:
    model, data = network(3), padded(rows=rows)
    for x, y in data[:K]:
        alone = [gradient(model, (x[j : j + 1], y[j : j + 1]), loss) for j in range(rows)]
        torch.testing.assert_close(gradient(model, (x, y), loss), torch.stack(alone).mean(0))
    result = trained(model, data, loss)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set()), result.reason
    assert any("treat every sample independently" in note for note in result.notes)
    assert not any("does not show" in note for note in result.notes)


@pytest.mark.parametrize("rows", [2, ROWS])
def test_padded_and_coupled_is_not(rows: int) -> None:
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = model(x).mean(1)
        return F.cross_entropy(scores - scores.mean(0), y)

    result = trained(network(3), padded(rows=rows), loss)
    assert (result.verdict, codes(result)) == (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, {"GA901"}), result.reason


def test_one_sample_whose_number_is_written_in_proves_nothing() -> None:
    result = trained(network(3), padded(rows=1), size_written_in)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "each of its micro-batches is one sample" in result.reason


def test_with_the_replay_alone_a_proof_is_no_large_batch() -> None:
    result = trained(network(3), padded(), mean_over_time, reference="replay")
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "not replayed as one large batch" in result.reason


class Recurrent(nn.Module):
    """Reads packed sequences."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.reader, self.norm, self.head = nn.GRU(6, 5), norm or nn.Identity(), nn.Linear(5, 3)

    def forward(self, sequences: Any) -> torch.Tensor:
        _, last = self.reader(sequences)
        state = last[0] - (last[0].mean(0) if isinstance(self.norm, Centred) else 0.0)
        out: torch.Tensor = self.head(state)
        return out


class Centred(nn.Identity):
    """Stands for a mean over the batch that is taken from every sample."""


def packed() -> list[tuple[Any, torch.Tensor]]:
    torch.manual_seed(3)
    lengths = torch.randint(2, 6, (6, ROWS)).tolist()
    sequences = [[torch.randn(length, 6) for length in own] for own in lengths]
    return [(nn.utils.rnn.pack_sequence(own, enforce_sorted=False), torch.randint(0, 3, (ROWS,))) for own in sequences]


@pytest.mark.parametrize(("norm", "verdict"), [(None, "equivalent"), (Centred(), "not-equivalent-by-construction")])
def test_packed_sequences_are_replaced_row_by_row(norm: nn.Module | None, verdict: str) -> None:
    torch.manual_seed(0)
    result = trained(Recurrent(norm), packed(), lambda model, x, y: F.cross_entropy(model(x), y))
    assert result.verdict is Verdict(verdict), result.reason


class Held:
    """A batch of an unknown kind: its class says itself how it is made."""

    def __new__(cls, *_: object) -> Held:
        return super().__new__(cls)

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


def test_targets_alone_prove_nothing() -> None:
    # A squared error is linear in its target, whatever the model made of all the other samples.
    class Opened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network(1)

        def forward(self, held: Held) -> torch.Tensor:
            out: torch.Tensor = self.inner(held.x).mean(1)
            return out - out.mean(0)

    torch.manual_seed(4)
    data = [(Held(torch.randn(ROWS, 4 + i, 6)), torch.randn(ROWS, 1)) for i in range(6)]
    result = trained(Opened(), data, lambda model, held, y: F.mse_loss(model(held), y))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "the data that its model was given is not known" in result.reason


class Graphs(nn.Module):
    """Passes messages along edges, and adds up the nodes of each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor, count: int) -> torch.Tensor:
        state = torch.tanh(self.first(nodes))
        state = torch.tanh(state + torch.zeros_like(state).index_add(0, edges[1], state[edges[0]]))
        out: torch.Tensor = self.last(torch.zeros(count, 8).index_add(0, graph, state))
        return out


def test_nodes_of_one_graph_may_depend_on_each_other() -> None:
    torch.manual_seed(5)
    data = []
    for _ in range(6):
        sizes = torch.randint(2, 5, (ROWS,))
        starts = sizes.cumsum(0) - sizes
        rings = [
            torch.stack([start + torch.arange(int(n)), start + torch.arange(int(n)).roll(1)])
            for start, n in zip(starts, sizes, strict=True)
        ]
        graph = torch.repeat_interleave(torch.arange(ROWS), sizes)
        data.append((torch.randn(len(graph), 6), torch.cat(rings, 1), graph, torch.randint(0, 3, (ROWS,))))
    result = trained(Graphs(), data, lambda model, x, e, g, y: F.cross_entropy(model(x, e, g, ROWS), y))
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set()), result.reason


def test_hidden_states_mixed_in_another_order_are_one_large_batch() -> None:
    def loss(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        state = model[0](x)
        scores = model[2](model[1](0.3 * state + 0.7 * state[order]))
        return 0.3 * F.cross_entropy(scores, y) + 0.7 * F.cross_entropy(scores, y[order])

    torch.manual_seed(6)
    data = [(torch.randn(ROWS, 6), torch.randint(0, 3, (ROWS,)), torch.randperm(ROWS)) for _ in range(6)]
    result = trained(network(3), data, loss)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set()), result.reason
    assert "as one large batch" in result.reference.kind


def test_a_proof_leaves_nothing_behind() -> None:
    def weights(**options: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
        model = network(3, nn.Dropout(0.3))
        torch.manual_seed(7)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with observe(**options):
            for i, (x, y) in enumerate(padded()):
                (mean_over_time(model, x, y) / K).backward()
                if (i + 1) % K == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        return [p.detach().clone() for p in model.parameters()], torch.get_rng_state()

    plain, state = weights(reference="ledger")
    proven, after = weights()
    assert torch.equal(state, after)
    assert all(torch.equal(a, b) for a, b in zip(plain, proven, strict=True))


def test_dropout_does_not_keep_samples_from_being_shown_independent() -> None:
    result = trained(network(3, nn.Dropout(0.3)), padded(), mean_over_time)
    assert result.verdict is Verdict.EQUIVALENT, result.reason


@pytest.mark.parametrize("first", [0.0, 0.2])
def test_a_coefficient_that_warms_up_from_zero_couples_nothing(first: float) -> None:
    model, data = network(3), [(x, y) for x, _, _, y in batches([ROWS] * 6)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe() as observation:
        for i, (x, y) in enumerate(data):
            scores = model(x)
            ((F.cross_entropy(scores, y) + min(1.0, first + i / 10) * scores.pow(2).mean()) / K).backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
    result = observation.result()
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set()), result.reason


# Weights that a micro-batch makes add up to 1, and targets that it standardises (more in test_prepared_data.py).


def weighted(model: nn.Module, x: torch.Tensor, _: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (weight / weight.sum() * F.cross_entropy(model(x), y, reduction="none")).sum()


def weighted_by_mean(
    model: nn.Module, x: torch.Tensor, _: torch.Tensor, weight: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    return (weight / weight.mean() * F.cross_entropy(model(x), y, reduction="none")).mean()


@pytest.mark.parametrize("loss", [weighted, weighted_by_mean])
def test_weights_normalised_as_data_are_a_mean_of_means(loss: Loss) -> None:
    model, data = network(3), batches([ROWS] * 6)
    assert distance_of_the_first_window(model, data, loss) > 0.02
    result = trained(model, data, loss)
    assert (result.verdict, codes(result)) == (Verdict.DEVIATES, {"GA104"})


def test_targets_standardised_by_batch_are_seen() -> None:
    def loss(
        model: nn.Module, x: torch.Tensor, _: torch.Tensor, wanted: torch.Tensor, __: torch.Tensor
    ) -> torch.Tensor:
        return F.mse_loss(model(x).squeeze(1), (wanted - wanted.mean()) / wanted.std())

    model, data = network(1), batches([ROWS] * 6)
    assert distance_of_the_first_window(model, data, loss) > 0.02
    result = trained(model, data, loss)
    assert (result.verdict, codes(result)) == (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, {"GA901"})


def test_an_error_of_our_own_is_no_bare_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Samples, chosen: Sequence[int]) -> Program:
        raise IndexError("tuple index out of range\nand more")

    monkeypatch.setattr(Samples, "replaced", broken)
    result = trained(network(3), padded(), mean_over_time)
    assert result.verdict is Verdict.INCONCLUSIVE
    said = "gradcheck-accum failed while replacing samples, please report this: "
    assert f"({said}IndexError: tuple index out of range)" in result.reason


def test_sparse_data_is_named_as_what_it_is() -> None:
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y)

    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(x, self.weight)

    torch.manual_seed(8)
    dense = [torch.randn(n, 6) * (torch.rand(n, 6) > 0.5) for n in [ROWS] * 6]
    result = trained(Sparse(), [(x.to_sparse(), torch.randint(0, 3, (len(x),))) for x in dense], loss)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "(sparse or nested data is not concatenated)" in result.reason
    assert "Error" not in result.reason and "please report" not in result.reason


# Micro-batches of one row, whose targets are flat: equal vectors of two of them are no constant.


class Tagger(nn.Module):
    def __init__(self, *, couples: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out, self.couples = nn.Embedding(9, 5), nn.Linear(10, 4), couples
        self.layer = nn.GRU(5, 5, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.layer(self.words(x))[0]
        return self.out(states - states.mean(0) if self.couples else states)


def tagged(shapes: Sequence[tuple[int, int]]) -> list[Batch]:
    torch.manual_seed(1)
    return [(torch.randint(1, 9, shape), torch.randint(0, 4, shape)) for shape in shapes]


def of_all_words(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / 40


ROWS_AND_WORDS = [(4, 6), (4, 5), (1, 4), (4, 6), (4, 5), (1, 7)]


def test_a_last_row_of_its_own_is_a_sample() -> None:
    result = trained(Tagger(couples=False), tagged(ROWS_AND_WORDS), of_all_words, scale=1.0)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set()), result.reason


def test_rows_that_depend_on_each_other_still_do() -> None:
    result = trained(Tagger(couples=True), tagged(ROWS_AND_WORDS), of_all_words, scale=1.0)
    assert (result.verdict, codes(result)) == (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, {"GA901"}), result.reason


def test_single_rows_are_joined_as_samples() -> None:
    rows = [(1, 4), (1, 6), (1, 5), (1, 7), (1, 3), (1, 6)]
    result = trained(Tagger(couples=False), tagged(rows), of_all_words, scale=1.0)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set()), result.reason
