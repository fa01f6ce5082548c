"""PyTorch's losses and those that people write by hand: right when divided by K, and K times too large when not.

What is expected is plain arithmetic: four micro-batches of equal size, added up without a division by four, are four
times the large batch's gradient.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import ANY

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult

SCRIPT = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
B, K = {rows}, 4
X, T, Y = torch.randn(2 * K * B, 6), torch.randn(2 * K * B, 3), torch.randint(0, 3, (2 * K * B,))
M, P, S = (torch.rand_like(T) > 0.5).float(), T.softmax(1), 2.0 * (T[:, 0] > 0) - 1
class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)
    @staticmethod
    def backward(ctx, given):
        return -0.3 * given
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
learned = nn.Parameter(torch.tensor([0.3, -0.2, 0.1]))
optimizer = torch.optim.SGD([*model.parameters(), learned], lr=0.05)
for i, (x, t, y, m, p, s) in enumerate(zip(*(values.split(B) for values in (X, T, Y, M, P, S)))):
    out = model(x)
    loss = {loss}
    (loss{scale}).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""

FUNCTIONS = [
    "F.mse_loss(out, t)",
    "F.l1_loss(out, t)",
    "F.smooth_l1_loss(out, t)",
    "F.huber_loss(out, t, delta=0.5)",
    "F.binary_cross_entropy(out.sigmoid(), m)",
    "F.binary_cross_entropy_with_logits(out, m)",
    "F.binary_cross_entropy_with_logits(out, m, pos_weight=torch.tensor([1.0, 2.0, 3.0]))",
    "F.cross_entropy(out, y)",
    "F.cross_entropy(out, p)",
    "F.cross_entropy(out, y, label_smoothing=0.1)",
    "F.nll_loss(out.log_softmax(1), y)",
    "F.kl_div(out.log_softmax(1), p, reduction='batchmean')",
    "F.kl_div(out.log_softmax(1), p, reduction='mean')",
    "F.kl_div(out.log_softmax(1), p.log(), log_target=True, reduction='batchmean')",
    "F.poisson_nll_loss(out, t.exp())",
    "F.gaussian_nll_loss(out[:, :1], t[:, :1], out[:, 1:2].exp())",
    "F.multi_margin_loss(out, y)",
    "F.multilabel_soft_margin_loss(out, m)",
    "F.multilabel_margin_loss(out, F.pad(y[:, None], (0, 2), value=-1))",
    "F.soft_margin_loss(out[:, 0], s)",
    "F.hinge_embedding_loss(out[:, 0], s)",
    "F.margin_ranking_loss(out[:, 0], out[:, 1], s)",
    "F.cosine_embedding_loss(out, t, s)",
    "F.triplet_margin_loss(out, t, t.flip(1))",
]

BY_HAND = [
    "(out - t).pow(2).mean()",
    "(out - t).pow(2).mean((0, 1))",
    "(out - t).pow(2).sum(1).mean()",
    "(out - t).abs().mean(0).sum()",
    "(out - t).abs().mean(0).mean()",
    "(torch.tensor([0.8, 1.9, 0.3]) * (out - t).pow(2).mean(0)).sum()",
    "(2 * (out - t).pow(2).mean(0)).sum()",
    "((out - t).pow(2).sum(0) / torch.tensor([2.0, 5.0, 7.0])).mean() / len(t)",
    "(out - t).pow(2).nanmean()",
    "(out - t).norm(dim=1).mean()",
    "(out - t).pow(2).sum() / len(t)",
    "(out - t).pow(2).sum() / out.numel()",
    "(out - t).pow(2).sum(0).mean() / len(t)",
    "(out * t).flatten().sum() / len(t)",
    "torch.dot(out.flatten(), t.flatten()) / len(t)",
    "torch.einsum('bi,bi->b', out, t).mean()",
    "(out @ t.T).diagonal().mean()",
    "(out.logsumexp(1) - out.gather(1, y[:, None]).squeeze(1)).mean()",
    "((1 - out.softmax(1).gather(1, y[:, None])) ** 2 * F.cross_entropy(out, y, reduction='none')[:, None]).mean()",
    "torch.maximum(0.9 * (t - out), -0.1 * (t - out)).mean()",
    "torch.stack([F.mse_loss(o, q) for o, q in zip(out, t)]).mean()",
    "F.mse_loss(out, t) + 0.1 * F.cross_entropy(out, y)",
    "0.3 * F.mse_loss(out, t) + 0.7 * F.l1_loss(out, t)",
    "F.mse_loss(out, t) - 0.01 * (out.softmax(1) * out.log_softmax(1)).sum(1).mean()",
    "F.mse_loss(out, t, reduction='sum') / B + (out.exp() - 1 - out).sum() / B",
    "F.mse_loss(out, t).view(1)",
    *(
        reduced.format(losses="torch.stack([F.mse_loss(out, t), F.cross_entropy(out, y), out.pow(2).mean()])")
        for reduced in (
            "({losses} * torch.tensor([1.0, 0.5, 0.1])).sum()",
            "({losses} / torch.tensor([1.0, 2.0, 7.0])).mean()",
            "torch.dot({losses}, torch.tensor([1.0, 0.5, 0.1]))",
            "(2 - {losses}).sum(0).neg()",
            "({losses} * learned.softmax(0)).sum()",
            "{losses} @ learned.exp()",
        )
    ),
    "torch.cat([F.mse_loss(out, t).view(1), 0.1 * F.l1_loss(out, t).view(1)]).sum()",
    "torch.cat([(out - t).pow(2).mean(1), 2 * out.abs().mean(1)]).mean()",
    "F.cross_entropy(Reversed.apply(out), y) + F.mse_loss(out, t)",
]

CASES = [(loss, 4) for loss in (*FUNCTIONS, *BY_HAND)] + [(loss, 3) for loss in BY_HAND]


def watched(loss: str, rows: int, folder: Path, scale: str = " / K") -> VerifyResult:
    return watch_source(SCRIPT.format(loss=loss, rows=rows, scale=scale), folder)


@pytest.mark.parametrize(("loss", "rows"), CASES)
def test_a_loss_divided_by_k_is_right(loss: str, rows: int, tmp_path: Path) -> None:
    result = watched(loss, rows, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


@pytest.mark.parametrize(("loss", "rows"), CASES)
def test_a_loss_that_is_not_divided_is_k_times_too_large(loss: str, rows: int, tmp_path: Path) -> None:
    result = watched(loss, rows, tmp_path, scale="")
    assert [d.mistake.code for d in result.diagnosis] == ["GA101"], result.reason
    assert [window.grad_norm_ratio for window in result.windows] == pytest.approx([4.0, 4.0], rel=1e-5)
    assert [window.grad_rel_error for window in result.windows] == pytest.approx([3.0, 3.0], rel=1e-5)


@pytest.mark.parametrize(("scale", "codes"), [(" / K", []), ("", ["GA101"])])
def test_learned_weights_of_stacked_losses_come_with_a_penalty_of_their_own(
    scale: str, codes: list[str], tmp_path: Path
) -> None:
    losses = "torch.stack([F.mse_loss(out, t), F.cross_entropy(out, y), out.pow(2).mean()])"
    result = watched(f"((-learned).exp() * {losses} + learned).sum() / 3", 4, tmp_path, scale)
    assert [d.mistake.code for d in result.diagnosis] == codes
    assert (result.verdict is Verdict.EQUIVALENT) == (not codes)


LIST_OF_SAMPLES = "sum(F.mse_loss(o, q) for o, q in zip(out, t)) / len(t)"


@pytest.mark.parametrize(
    ("rows", "scale", "verdict"),
    [
        (4, " / K", Verdict.EQUIVALENT),
        (3, " / K", Verdict.EQUIVALENT),
        (3, "", Verdict.DEVIATES),
        # Four samples and K = 4: it is by the number of the samples that the source divides.
        (4, "", Verdict.DEVIATES),
    ],
)
def test_the_mean_over_a_list_of_samples_is_no_division_by_k(
    rows: int, scale: str, verdict: Verdict, tmp_path: Path
) -> None:
    result = watched(LIST_OF_SAMPLES, rows, tmp_path, scale)
    assert result.verdict is verdict
    assert any("--loss-coefficient" in note for note in result.notes) == (verdict is Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(("coefficient", "verdict"), [(0.25, Verdict.DEVIATES), (1.0, Verdict.EQUIVALENT)])
def test_what_the_caller_states_decides(coefficient: float, verdict: Verdict, tmp_path: Path) -> None:
    # Of four samples the coefficient is 1/4 where they are to be averaged, and 1 where 1/4 was the division by K.
    script = SCRIPT.format(loss=LIST_OF_SAMPLES, rows=4, scale="")
    assert watch_source(script, tmp_path, loss_coefficient=coefficient).verdict is verdict


@pytest.mark.parametrize(
    "loss", ["(out - t).pow(2).mean().sqrt()", "(out - t).pow(2).mean().log()", "out.logsumexp((0, 1))"]
)
def test_a_function_of_a_mean_couples_the_samples(loss: str, tmp_path: Path) -> None:
    assert watched(loss, 4, tmp_path).verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION


@pytest.mark.parametrize("scale", [" / K", ""])
def test_a_scalar_of_unknown_units_never_passes_unseen(scale: str, tmp_path: Path) -> None:
    # Is 1/4 the mean over the samples or the division by K? Its graph does not tell that this is a sum.
    result = watched("(out.view(1, -1) @ t.view(-1, 1)).squeeze() / len(t)", 4, tmp_path, scale)
    assert result.verdict is Verdict.INCONCLUSIVE, result.diagnosis


WITH_CONSTANTS = [
    "F.cross_entropy(out, y) + out.pow(2).mean() / 10",
    "F.cross_entropy(out, y) + out.pow(2).mean() / 4",
    "F.mse_loss(out, t) / 2",
    "(F.cross_entropy(out, y) + out.pow(2).mean()) / 2",
    "F.cross_entropy(out, y) / 2 + out.pow(2).mean() / 2",
    "F.cross_entropy(out, y) + 0.01 * sum(p.pow(2).sum() for p in model.parameters())",
    "F.cross_entropy(out, y) + sum(p.pow(2).sum() for p in model.parameters()) / 2",
    "F.cross_entropy(out, y) + model[0].weight.norm() / 3",
]
"""Objectives whose constants look like divisions by K = 3, by K off by one, or by the four samples of a micro-batch."""


@pytest.mark.parametrize("loss", WITH_CONSTANTS)
@pytest.mark.parametrize(("steps", "scale"), [(1, ""), (3, " / K")])
def test_the_constants_of_an_objective_are_no_division_by_k(loss: str, steps: int, scale: str, tmp_path: Path) -> None:
    source = SCRIPT.replace("K = {rows}, 4", f"K = {{rows}}, {steps}").format(loss=loss, rows=4, scale=scale)
    result = watch_source(source, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


@pytest.mark.parametrize("loss", [WITH_CONSTANTS[i] for i in (0, 1, 5, 6, 7)])
def test_such_an_objective_undivided_is_k_times_too_large(loss: str, tmp_path: Path) -> None:
    source = SCRIPT.replace("K = {rows}, 4", "K = {rows}, 3").format(loss=loss, rows=4, scale="")
    result = watch_source(source, tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, ["GA101"]), result.reason


def test_a_divisor_beside_units_that_nobody_knows_is_no_k(tmp_path: Path) -> None:
    source = SCRIPT.replace("K = {rows}, 4", "K = {rows}, 1")
    result = watch_source(source.format(loss="torch.einsum('bc,bc->', out, out) / len(x)", rows=4, scale=""), tmp_path)
    assert result.diagnosis == ()
    assert result.verdict is not Verdict.DEVIATES


def test_a_divisor_of_one_of_two_backwards_is_its_coefficient(tmp_path: Path) -> None:
    source = SCRIPT.replace("K = {rows}, 4", "K = {rows}, 1").format(loss="F.cross_entropy(out, y)", rows=4, scale="")
    two = source.replace(
        "    (loss).backward()", "    loss.backward(retain_graph=True)\n    (out.pow(2).mean() / 10).backward()"
    )
    result = watch_source(two, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


@pytest.mark.parametrize(("divisor", "codes"), [("accumulation_steps", ["GA304"]), ("10", [])])
def test_a_divisor_of_both_backwards_of_a_step_is_k_where_it_is_named_so(
    divisor: str, codes: list[str], tmp_path: Path
) -> None:
    source = SCRIPT.replace("K = {rows}, 4", "K = {rows}, 1").format(loss="F.mse_loss(out, t)", rows=4, scale="")
    two = source.replace(
        "    (loss).backward()",
        f"    (loss / {divisor}).backward(retain_graph=True)\n    (out.pow(2).mean() / {divisor}).backward()",
    )
    result = watch_source(f"accumulation_steps = 10\n{two}", tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes
    assert any("by 10 was read as part of the objective" in note for note in result.notes) is not bool(codes)


PENALTIES = [
    "model[0].weight.pow(2).sum()",
    "sum(p.norm() ** 2 for p in model.parameters())",
    "torch.cat([p.view(-1) for p in model.parameters()]).abs().sum()",
    "sum((C * (p - 0.9) ** 2).sum() for p in [model[0].weight])",
    "50 * (C * (model[0].weight - C).pow(2)).sum()",
    "torch.dot(model[0].bias, model[0].bias)",
    "torch.stack([p.norm() for p in model.parameters()]).norm()",
]
"""Of parameters alone; C are constants of the first weight's shape (where it was, how much of it counts)."""


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize(("scale", "codes"), [(" / K", []), ("", ["GA101"])])
def test_a_penalty_counts_once_a_window(penalty: str, scale: str, codes: list[str], tmp_path: Path) -> None:
    source = SCRIPT.format(loss=f"(F.mse_loss(out, t) + 0.01 * ({penalty}))", rows=3, scale=scale)
    result = watch_source(source.replace("model =", "C = torch.rand(8, 6)\nmodel ="), tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes, result.reason
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT), result.reason
    error = 3.0 if codes else 0.0
    assert [w.grad_rel_error for w in result.windows] == pytest.approx([error, error], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("loss", "verdict", "codes", "error"),
    [
        # Whatever 0.01 or 1/4 is there for, the other mean has four times, or a quarter of, its weight.
        ("F.mse_loss(out, t) + 0.01 * penalty", Verdict.DEVIATES, ["GA101"], 3.0),
        ("F.mse_loss(out, t) + penalty / 4", Verdict.DEVIATES, ["GA101"], 3.0),
        ("(F.mse_loss(out, t) + 0.01 * penalty) / K / K", Verdict.DEVIATES, ["GA102"], 0.75),
        # Here it is K that the penalty alone is divided by, or that it alone is not: the terms are taken apart.
        ("F.mse_loss(out, t) + penalty / K", Verdict.DEVIATES, ["GA101"], None),
        ("F.mse_loss(out, t) / K + penalty", Verdict.DEVIATES, ["GA101"], None),
        # The source has 0.01 from elsewhere than K.
        ("F.mse_loss(out, t) / K + 0.01 * penalty", Verdict.DEVIATES, ["GA101"], None),
        ("F.mse_loss(out, t, reduction='sum') + 0.01 * penalty", Verdict.DEVIATES, ["GA101"], None),
    ],
)
def test_no_reading_of_a_penalty_mends_the_mean_beside_it(
    loss: str, verdict: Verdict, codes: list[str], error: float | None, tmp_path: Path
) -> None:
    own = loss.replace("penalty", "model[0].weight.pow(2).sum()")
    result = watch_source(SCRIPT.format(loss=own, rows=3, scale=""), tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (verdict, codes), result.reason
    assert [w.grad_rel_error for w in result.windows] == [ANY if error is None else pytest.approx(error, rel=1e-5)] * 2


def test_a_penalty_whose_coefficient_holds_the_division(tmp_path: Path) -> None:
    source = SCRIPT.format(loss="F.mse_loss(out, t) / K + 0.01 / K * model[0].weight.abs().sum()", rows=3, scale="")
    result = watch_source(source, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


def test_a_sum_over_rows_of_data_is_no_penalty(tmp_path: Path) -> None:
    """It is over more than the weight has, and undivided it is right as sums over samples are."""
    source = SCRIPT.format(loss="((x[:, :3] * model[2].bias - 1) ** 2).sum()", rows=4, scale="")
    result = watch_source(source, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


TOKENS = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
K = 4
model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for length in {lengths}:
    window = []
    for _ in range(length):
        x, y = torch.randint(0, 11, (3, 6)), torch.randint(0, 11, (3, 6))
        y[:, int(torch.randint(2, {most}, (1,))):] = -100
        window.append((x, y))
    n = sum((y != -100).sum() for _, y in window)
    for x, y in window:
        loss = F.cross_entropy(model(x).transpose(1, 2), y, reduction="{reduction}")
        # What a framework's own backward does.
        ({scaled} / K).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

RIGHT = ["loss * K / n", "loss / n * K", "K * (loss / n)", "loss * (K / n)", "loss * (K / float(n))", "loss / (n / K)"]


def of_tokens(tmp_path: Path, scaled: str, lengths: list[int], reduction: str, most: int) -> VerifyResult:
    source = TOKENS.format(scaled=scaled, lengths=lengths, reduction=reduction, most=most)
    return watch_source(source, tmp_path)


@pytest.mark.parametrize("lengths", [[4, 4, 4], [4, 4, 2]])
@pytest.mark.parametrize("scaled", RIGHT)
def test_what_undoes_the_division_of_a_framework_is_right(scaled: str, lengths: list[int], tmp_path: Path) -> None:
    result = of_tokens(tmp_path, scaled, lengths, "sum", most=6)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


@pytest.mark.parametrize("scaled", ["loss / n", "loss * (1 / n)"])
def test_a_sum_over_the_tokens_that_a_framework_divides_once_more(scaled: str, tmp_path: Path) -> None:
    result = of_tokens(tmp_path, scaled, [4, 4, 2], "sum", most=6)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, ["GA102"])
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([0.25] * 3, rel=1e-5)


@pytest.mark.parametrize(
    ("scaled", "norms"),
    [
        ("loss * K / length", [1, 1, 1]),
        ("loss / length", [0.25] * 3),
        ("4.0 * loss", [1, 1, 0.5]),
        ("loss", [1, 1, 0.5]),
    ],
)
def test_a_mean_multiplied_by_k_before_a_framework_divides_by_it(
    scaled: str, norms: list[float], tmp_path: Path
) -> None:
    """Four times the loss is an objective where the division by K = 4 makes the windows right, and else undoes it."""
    result = of_tokens(tmp_path, scaled, [4, 4, 2], "mean", most=3)
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx(norms, rel=1e-5)


def test_a_factor_of_one_makes_no_sum_of_the_mean_over_one_row(tmp_path: Path) -> None:
    source = SCRIPT.replace("K = {rows}, 4", "K = {rows}, 1").format(
        loss="F.mse_loss(out, t) * 1", rows=1, scale=" / accum_steps"
    )
    source = f"accum_steps = 3\n{source}"
    assert [d.mistake.code for d in watch_source(source, tmp_path).diagnosis] == ["GA304"]


@pytest.mark.parametrize(("scale", "codes"), [(" / K", []), ("", ["GA101"])])
def test_as_many_elements_in_a_micro_batch_as_rows_in_its_window(scale: str, codes: list[str], tmp_path: Path) -> None:
    """Four rows of three scores, and three times four rows."""
    source = SCRIPT.replace("K = {rows}, 4", "K = {rows}, 3")
    loss = "F.mse_loss(out, t, reduction='sum') / out.numel()"
    result = watch_source(source.format(loss=loss, rows=4, scale=scale), tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes, result.reason
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT), result.reason


TIME_STEPS = """
import torch, torch.nn as nn
torch.manual_seed(0)
K, T = 2, {steps}
cell, head = nn.RNNCell(4, 5), nn.Linear(5, 3)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.01)
for i in range(2 * K):
    x, y, state, total = torch.randn(T, 2, 4), torch.randint(0, 3, (T, 2)), torch.zeros(2, 5), 0.0
    for t in range(T):
        state = cell(x[t], state)
        total = total + nn.functional.cross_entropy(head(state), y[t])
    (total{scale}).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("scale", "codes", "steps"),
    [
        (" / K", [], 150),
        pytest.param(" / K", [], 600, marks=pytest.mark.slow),
        (" / T / K", [], 25),
        (" / T", ["GA101"], 25),
        ("", ["GA101"], 150),
        (" / K / K", ["GA102"], 25),
    ],
)
def test_a_sum_over_hundreds_of_time_steps(scale: str, codes: list[str], steps: int, tmp_path: Path) -> None:
    result = watch_source(TIME_STEPS.format(steps=steps, scale=scale), tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes, result.reason
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT), result.reason


SMOOTHED = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(3)
net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
K = 3
for _ in range(2):
    # Small images come in larger batches.
    window = [(torch.randn(n, 3, side, side), torch.randint(0, 5, (n,))) for side, n in ((4, 6), (8, 2), (6, 3))]
    rows = sum(len(y) for _, y in window)
    for x, y in window:
        loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
        ({scaled}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("scaled", "weights", "codes"),
    [
        ("loss * len(y) / rows", (1.0, 1.0, 1.0), set()),
        ("loss / K", (11 / 18, 11 / 6, 11 / 9), {"GA104"}),
        ("loss * len(y) / rows / K", (1 / 3, 1 / 3, 1 / 3), {"GA102"}),
        ("loss", (11 / 6, 11 / 2, 11 / 3), {"GA101", "GA104"}),
    ],
)
def test_smoothed_labels_have_the_mean_of_their_rows(
    tmp_path: Path, scaled: str, weights: tuple[float, ...], codes: set[str]
) -> None:
    result = watch_source(SMOOTHED.format(scaled=scaled), tmp_path)
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT), result.reason
    assert {d.mistake.code for d in result.diagnosis} == codes
    assert result.windows[0].weights == pytest.approx(weights, rel=1e-5)
