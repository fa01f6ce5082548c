"""verify on losses that are computed in memory that is written into: masks, buffers, views of either.

K is 3, a micro-batch has 5 rows, the loss a coefficient of 0.7; the large batch's gradient is plain arithmetic here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, logsigmoid, relu

from gradcheck_accum.engine.tape import Tape
from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

pytestmark = pytest.mark.usefixtures("in_float64")

K, ROWS, COEFFICIENT = 3, 5, 0.7
ONE_BATCH = "replay (the window's data as one large batch)"

Change = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""What is made of the hidden layer ``h`` of the samples ``x``, in place."""


def column_set(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h[:, 0] = 0.0
    return h


def masked_set(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h[x[:, 0] > 0] = 0.25
    return h


def set_from_data(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h[:, 1:3] = x[:, :2]
    return h


def set_from_itself(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h[:, 0] = 2.0 * h[:, 1]
    return h


def view_multiplied(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h[:, 1:3].mul_(3.0)
    return h


def view_filled(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h.t()[:2].masked_fill_((x[:, 0] > 0), 0.5)
    return h


def view_added_to(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    part = h.view(-1, 2, 3)[:, 1]
    part += x[:, :3]
    return h


def view_activated(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    relu(h[:, 2:], inplace=True)
    return h


def indices_put(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h.index_put_((x[:, 1] > 0,), torch.zeros(()))
    return h


def seen_through_an_older_view(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    part = h[:, :4]
    h[:, 0] = 0.0
    return torch.cat([part, h[:, 4:]], dim=1)


def buffer_filled(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    buffer = torch.full((len(h), 8), 0.3)
    buffer[:, 2:] = h
    return buffer[:, 1:7]


def buffer_copied_into(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    buffer = x.repeat(1, 2)
    left = buffer[:, :3]
    left.copy_(h[:, :3])
    buffer[:, 3:6].copy_(h[:, 3:])
    return buffer[:, :6]


CHANGES: list[Change] = [
    column_set,
    masked_set,
    set_from_data,
    set_from_itself,
    view_multiplied,
    view_filled,
    view_added_to,
    view_activated,
    indices_put,
    seen_through_an_older_view,
    buffer_filled,
    buffer_copied_into,
]


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def batches(windows: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(2)
    return [
        (torch.randn(ROWS, 4, generator=drawn, dtype=torch.float64), torch.randint(0, 3, (ROWS,), generator=drawn))
        for _ in range(K * windows)
    ]


def loss_of(model: nn.Sequential, change: Change, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return COEFFICIENT * cross_entropy(model[2](torch.tanh(change(model[0](x), x))), y)


def trained(change: Change, divisor: float) -> tuple[VerifyResult, list[float]]:
    """The result of watching two windows, and |g| / |g_true| of each by arithmetic of its own."""
    model, ratios = network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe() as observation:
        for i, (x, y) in enumerate(batches()):
            (loss_of(model, change, x, y) / divisor).backward()
            if (i + 1) % K == 0:
                with torch.random.fork_rng():
                    ratios.append(_ratio(model, change, batches()[i + 1 - K : i + 1]))
                optimizer.step()
                optimizer.zero_grad()
    return observation.result(), ratios


def _ratio(model: nn.Sequential, change: Change, window: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    twin = copy.deepcopy(model)
    x, y = torch.cat([x for x, _ in window]), torch.cat([y for _, y in window])
    h = change(twin[0](x), x)
    losses = cross_entropy(twin[2](torch.tanh(h)), y, reduction="none")
    true = torch.autograd.grad(COEFFICIENT * losses.sum() / (K * ROWS), list(twin.parameters()))
    got = [p.grad for p in model.parameters() if p.grad is not None]
    return float(torch.cat([g.flatten() for g in got]).norm() / torch.cat([g.flatten() for g in true]).norm())


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_written_in_place_is_run_again_as_one_large_batch(change: Change) -> None:
    result, ratios = trained(change, K)
    assert ratios == pytest.approx([1.0, 1.0])
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx(ratios)
    assert ONE_BATCH in result.reference.kind, result.notes


def assert_undivided_deviates(change: Change) -> None:
    result, ratios = trained(change, 1.0)
    assert ratios == pytest.approx([K, K])
    assert result.verdict is Verdict.DEVIATES
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx(ratios)
    assert [d.mistake.code for d in result.diagnosis] == ["GA101"]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_the_undivided_twin_deviates(change: Change) -> None:
    assert_undivided_deviates(change)


def written_unseen(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        h[:, 0] = 0.0
    return h


def written_beside_the_graph(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h.data[:, 0] = 0.0
    return h


@pytest.mark.parametrize("change", [written_unseen, written_beside_the_graph])
def test_what_autograd_does_not_see_is_not_run_again(change: Change) -> None:
    # What was written may couple samples (the mean of others, say), and nothing that was recorded would show it.
    result, ratios = trained(change, K)
    assert ratios == pytest.approx([1.0, 1.0])
    assert result.verdict is Verdict.INCONCLUSIVE, result.reason
    assert "in a way that could not be recorded" in result.reason
    assert "--reference ledger" in result.reason
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx(ratios)
    assert result.diagnosis == ()
    assert_undivided_deviates(change)


def first_row_set(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h[0] = 0.0
    return h


def first_rows_filled(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    buffer = torch.zeros(len(h) + 1, 6)
    buffer[1:] = h
    return buffer[:-1]


@pytest.mark.parametrize("change", [first_row_set, first_rows_filled])
def test_rows_that_are_written_by_their_place_are_not_put_together(change: Change) -> None:
    result, _ = trained(change, K)
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    assert ONE_BATCH not in result.reference.kind


def test_a_right_preference_loss_with_masked_tokens_is_right() -> None:
    # DPO as TRL writes it: the log-probabilities of masked tokens are set to 0 in place.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 7))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    drawn = torch.Generator().manual_seed(3)
    with observe() as observation:
        for i in range(2 * K):
            tokens = torch.randint(0, 7, (2 * ROWS, 8), generator=drawn)
            mask = torch.rand(2 * ROWS, 7, generator=drawn) > 0.4
            labels = tokens[:, 1:].clone()
            labels[~mask] = 0
            logps = model(tokens)[:, :-1].log_softmax(-1).gather(2, labels.unsqueeze(2)).squeeze(2)
            logps[~mask] = 0
            chosen, rejected = logps.sum(-1).chunk(2)
            (-logsigmoid(COEFFICIENT * (chosen - rejected)).mean() / K).backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
    result = observation.result()
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    assert ONE_BATCH in result.reference.kind, result.notes


def test_running_a_window_again_leaves_the_loops_own_buffer_as_it_is() -> None:
    model, optimizer, kept = network(), None, []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe():
        for x, y in batches(1):
            buffer = torch.zeros(ROWS, 6)
            buffer[:, :6] = model[0](x)
            kept.append((buffer, buffer.detach().clone()))
            (cross_entropy(model[2](buffer), y) / K).backward()
        optimizer.step()
    assert all(torch.equal(buffer, before) for buffer, before in kept)


# Data that is written into after it was used: what is run again has it as it was.


def networks() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
    return nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1)), generator


def adversarial(divisor: float, *, one_buffer: bool) -> VerifyResult:
    """DCGAN's discriminator: one tensor holds the labels of real and of made pictures, one after the other."""
    critic, generator = networks()
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    criterion, buffer = nn.BCEWithLogitsLoss(), torch.empty(ROWS)
    with observe() as observation:
        for i in range(2 * K):
            label = buffer if one_buffer else torch.empty(ROWS)
            label.fill_(1.0)
            (criterion(critic(torch.randn(ROWS, 6)).view(-1), label) / divisor).backward()
            made = generator(torch.randn(ROWS, 4)).detach()
            label.fill_(0.0)
            (criterion(critic(made).view(-1), label) / divisor).backward()
            label.fill_(1.0)
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
    return observation.result()


@pytest.mark.parametrize("one_buffer", [True, False])
def test_labels_that_are_filled_anew_are_run_again_as_they_were(one_buffer: bool) -> None:
    right, wrong = (adversarial(divisor, one_buffer=one_buffer) for divisor in (K, 1))
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    assert ONE_BATCH in right.reference.kind
    assert (wrong.verdict, [d.mistake.code for d in wrong.diagnosis]) == (Verdict.DEVIATES, ["GA101"] * 2)


def filled(x: torch.Tensor, new: torch.Tensor) -> None:
    x.copy_(new)


def filled_without_a_graph(x: torch.Tensor, new: torch.Tensor) -> None:
    with torch.no_grad():
        x[:] = new


def filled_behind_autograd(x: torch.Tensor, new: torch.Tensor) -> None:
    x.data.copy_(new)


class Fills(nn.Module):
    """Writes into what it is given."""

    def forward(self, x: torch.Tensor, new: torch.Tensor) -> None:
        x.view(-1).copy_(new.view(-1))


@pytest.mark.parametrize("fill", [filled, filled_without_a_graph, filled_behind_autograd, Fills()])
def test_a_buffer_that_every_batch_is_copied_into(fill: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    model, _ = networks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.empty(ROWS, 6), torch.empty(ROWS, 1)
    with observe() as observation:
        for i in range(2 * K):
            fill(x, torch.randn(ROWS, 6))
            fill(y, torch.randn(ROWS, 1))
            (COEFFICIENT * (model(x) - y).pow(2).mean() / K).backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
    result = observation.result()
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert ONE_BATCH in result.reference.kind


def test_only_what_is_written_into_is_copied() -> None:
    weight = nn.Parameter(torch.ones(6))
    x, y = torch.randn(ROWS, 6), torch.randn(ROWS)
    tape = Tape()
    with tape:
        program = tape.program([(x @ weight - y).pow(2).mean()])
        assert program is not None
        data = {x.data_ptr(), y.data_ptr(), weight.data_ptr()}
        with torch.no_grad():
            weight.add_(1.0)
        torch.zeros(3).add_(1.0)
        assert data == {leaf.data_ptr() for leaf in program.leaves}
        before = y.clone()
        y[:2] = 7.0
        kept = {leaf.data_ptr(): leaf for leaf in program.leaves}
        assert data & kept.keys() == data - {y.data_ptr()}
        assert any(torch.equal(leaf, before) for leaf in kept.values())
