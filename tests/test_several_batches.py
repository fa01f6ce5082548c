"""Losses that are added up for one backward: those of micro-batches need dividing, those of one objective do not.

What the terms are does not follow from their sum, so that an undivided one is equivalent only if its terms share their
samples, or depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict
from gradcheck_accum.verify import observe

K, ROWS, WIDTH, CLASSES = 4, 4, 5, 3

Objective = Callable[[nn.Linear], torch.Tensor]


def classify(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores, labels)


def labels(rows: int) -> torch.Tensor:
    return torch.randint(0, CLASSES, (rows,))


def verdict(objective: Objective) -> tuple[Verdict, str]:
    """What a loop with one backward a step is called, and why."""
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe() as observation:
        for _ in range(2):
            torch.autograd.backward(objective(model))
            optimizer.step()
            optimizer.zero_grad()
    result = observation.result()
    return result.verdict, result.reason


def of_slices(model: nn.Linear) -> torch.Tensor:
    x, y, total = torch.randn(K * ROWS, WIDTH), labels(K * ROWS), torch.zeros(())
    for start in range(0, K * ROWS, ROWS):
        total = total + classify(model(x[start : start + ROWS]), y[start : start + ROWS])
    return total


def of_a_list(model: nn.Linear) -> torch.Tensor:
    criterion = nn.CrossEntropyLoss(weight=torch.rand(CLASSES))
    batches = [(torch.randn(ROWS, WIDTH), labels(ROWS)) for _ in range(K)]
    return torch.stack([criterion(model(x), y) for x, y in batches]).sum()


def of_classes_weighed_alike(model: nn.Linear) -> torch.Tensor:
    weight = torch.rand(CLASSES)
    batches = [(torch.randn(ROWS, WIDTH), labels(ROWS)) for _ in range(K)]
    return sum((nn.functional.cross_entropy(model(x), y, weight=weight) for x, y in batches), torch.zeros(()))


@pytest.mark.parametrize("objective", [of_slices, of_a_list, of_classes_weighed_alike])
def test_an_undivided_sum_over_other_samples_is_not_passed(objective: Objective) -> None:
    found, reason = verdict(objective)
    assert found is Verdict.INCONCLUSIVE
    assert "they may or may not be micro-batches" in reason


@pytest.mark.parametrize("objective", [of_slices, of_a_list])
def test_the_same_sum_divided_is_the_large_batchs_mean(objective: Objective) -> None:
    assert verdict(lambda model: objective(model) / K)[0] is Verdict.EQUIVALENT


def of_views(model: nn.Linear) -> torch.Tensor:
    x, y, total = torch.randn(ROWS, WIDTH), labels(ROWS), torch.zeros(())
    for _ in range(K):
        total = total + classify(model(x + 0.1 * torch.randn_like(x)), y)
    return total


def of_time_steps(model: nn.Linear) -> torch.Tensor:
    x, y, total = torch.randn(ROWS, K, WIDTH), torch.randint(0, CLASSES, (ROWS, K)), torch.zeros(())
    for t in range(K):
        total = total + classify(model(x[:, t]), y[:, t])
    return total


def of_a_state_carried_on(model: nn.Linear) -> torch.Tensor:
    x, y, total = torch.randn(K, ROWS, WIDTH), torch.randint(0, CLASSES, (K, ROWS)), torch.zeros(())
    state = torch.zeros(ROWS, CLASSES)
    for t in range(K):
        state = torch.tanh(model(x[t]) + state)
        total = total + classify(state, y[t])
    return total


def of_two_objectives(model: nn.Linear) -> torch.Tensor:
    def one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return classify(model(x), y)

    return one(torch.randn(ROWS, WIDTH), labels(ROWS)) + one(torch.randn(ROWS, WIDTH), labels(ROWS))


def of_draws_from_one_batch(model: nn.Linear) -> torch.Tensor:
    x, y = torch.randn(ROWS, WIDTH), labels(ROWS)
    return sum((classify(nn.functional.dropout(model(x)), y) for _ in range(K)), torch.zeros(()))


@pytest.mark.parametrize(
    "objective", [of_views, of_time_steps, of_a_state_carried_on, of_two_objectives, of_draws_from_one_batch]
)
def test_an_objective_of_several_terms_is_one_loss(objective: Objective) -> None:
    assert verdict(objective)[0] is Verdict.EQUIVALENT


IN_TURN = """
import torch, torch.nn as nn
torch.manual_seed(0)
G, D = nn.Linear(3, 6), nn.Linear(6, 1)
of_g, of_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
bce = nn.BCEWithLogitsLoss()
X, Z = torch.randn(30, 6), torch.randn(30, 3)
for i, (x, z) in enumerate(zip(X.split(5), Z.split(5))):
    fake = G(z)
    D.requires_grad_(True)
    of_d_loss = bce(D(x), torch.ones(5, 1)) + bce(D(fake.detach()), torch.zeros(5, 1))
    (of_d_loss{scale}).backward()
    D.requires_grad_(False)
    (bce(D(fake), torch.ones(5, 1)) / 3).backward()
    if i % 3 == 2:
        of_d.step()
        of_g.step()
        of_d.zero_grad()
        of_g.zero_grad()
"""


def test_networks_that_are_frozen_in_turn_are_measured_with_what_they_got_before(tmp_path: Path) -> None:
    right = watch_source(IN_TURN.format(scale=" / 3"), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    wrong = watch_source(IN_TURN.format(scale=""), tmp_path)
    assert [(d.mistake.code, d.where.line) for d in wrong.diagnosis] == [("GA101", 12)]
    assert [w.grad_norm_ratio for w in wrong.windows] == pytest.approx([3.0, 1.0, 3.0, 1.0], rel=1e-5)


def test_what_is_frozen_when_it_is_measured_is_frozen_afterwards(tmp_path: Path) -> None:
    frozen = "assert not any(p.requires_grad for p in D.parameters())"
    watch_source(IN_TURN.format(scale=" / 3").replace("of_g.step()", f"of_g.step(); {frozen}"), tmp_path)


TAKING_TURNS = """
import torch, torch.nn as nn
torch.manual_seed(0)
G, D = nn.Linear(3, 6), nn.Linear(6, 1)
of_g, of_d = torch.optim.SGD(G.parameters(), lr=0.1), torch.optim.SGD(D.parameters(), lr=0.1)
bce = nn.BCEWithLogitsLoss()
for x in torch.randn(20, 6).split(5):
    fake = G(torch.randn(5, 3))
    {before}
    (bce(D(x), torch.ones(5, 1)) + bce(D(fake.detach()), torch.zeros(5, 1))).backward()
    of_d.step()
    of_d.zero_grad()
    bce(D(fake), torch.ones(5, 1)).backward()
    of_g.step()
    of_g.zero_grad()
"""


def test_what_the_others_loss_leaves_is_cleared_before_the_own_one_and_not_after(tmp_path: Path) -> None:
    right = watch_source(TAKING_TURNS.format(before="of_d.zero_grad()"), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    wrong = watch_source(TAKING_TURNS.format(before="pass"), tmp_path)
    assert [(d.mistake.code, d.where.line) for d in wrong.diagnosis] == [("GA204", 11)]
    expected = [Verdict.EQUIVALENT, Verdict.EQUIVALENT, *[Verdict.DEVIATES, Verdict.EQUIVALENT] * 3]
    assert [window.verdict for window in wrong.windows] == expected


SKIPPING = """
import torch
K = 5
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(11, 4), torch.randn(11, 3))
for i, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=1)):
    if i == 2:
        continue
    loss = torch.nn.functional.mse_loss(model(x), y) {and_more}
    (loss / K).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_penalty_of_as_many_weights_as_batches_were_drawn_is_none_of_each(tmp_path: Path) -> None:
    """Of 11 micro-batches one is skipped and one is left over: with two weights or none, in all modes."""
    penalty = "+ 0.01 * sum(p.pow(2).sum() for p in model.parameters())"
    for reference in ("ledger", "both"):
        for and_more in ("", penalty):
            result = watch_source(SKIPPING.format(and_more=and_more), tmp_path, reference=reference)
            assert {d.mistake.code for d in result.diagnosis} == {"GA301", "GA303"}


def test_terms_of_one_forward_are_of_one_batch_however_many_were_drawn(tmp_path: Path) -> None:
    """A skipped batch makes two that were drawn for a loss with two means of one output."""
    source = SKIPPING.replace("i == 2", "i == 9").format(and_more="+ model(x).pow(2).mean() + model(x).abs().mean()")
    source = source.replace("    loss = ", "    out = model(x)\n    loss = ").replace("model(x).", "out.")
    result = watch_source(source.replace("(loss / K)", "(loss / 3 / K)"), tmp_path, reference="ledger")
    assert result.reason == "5 micro-batches never reached a step"
    assert {d.mistake.code for d in result.diagnosis} == {"GA301"}


STACKED = """\
import torch
torch.manual_seed(2)
model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
WEIGHT, HELD = 0.25, 4
parts = [(torch.randn(7, 5), torch.randn(7, 2)) for _ in range(12)]
while parts:
    group, parts = parts[:4], parts[4:]
    loss = torch.stack([torch.nn.functional.mse_loss(model(x), y) for x, y in group]).mean()
    ({scaled}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("scaled", "verdict"),
    [
        ("loss", Verdict.EQUIVALENT),
        ("loss * WEIGHT", Verdict.EQUIVALENT),
        ("loss / len(group)", Verdict.INCONCLUSIVE),
        ("loss.div(len(group))", Verdict.INCONCLUSIVE),
        ("loss / HELD", Verdict.INCONCLUSIVE),
    ],
)
def test_a_mean_of_losses_that_is_divided_by_their_number_again(scaled: str, verdict: Verdict, tmp_path: Path) -> None:
    result = watch_source(STACKED.format(scaled=scaled), tmp_path)
    assert result.verdict is verdict, result.reason


TEACHERS = """\
import torch
F = torch.nn.functional
torch.manual_seed(4)
N = 3
teachers = [torch.nn.Linear(6, N).requires_grad_(False) for _ in range(N)]
model = torch.nn.Linear(6, N)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, labels = torch.randn(9, 6), torch.randint(0, N, (9,))
for i in range(0, len(inputs), N):
    x, y = inputs[i:i + N], labels[i:i + N]
    optimizer.zero_grad()
    for teacher in teachers:
        soft = F.kl_div(F.log_softmax(model(x), 1), F.softmax(teacher(x), 1), reduction="batchmean")
        (soft / len(teachers)).backward()
    (F.cross_entropy(model(x), y){scaled}).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("scaled", "verdict"), [("", Verdict.EQUIVALENT), (" / N", Verdict.INCONCLUSIVE)])
def test_a_loss_once_a_window_that_is_divided_by_the_number_of_another(
    scaled: str, verdict: Verdict, tmp_path: Path
) -> None:
    """A third may be its weight in the objective: no window shows that it is too little."""
    result = watch_source(TEACHERS.format(scaled=scaled), tmp_path)
    assert (result.verdict, result.diagnosis) == (verdict, ()), result.reason
