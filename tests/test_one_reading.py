"""Every column of a report rests on one reading of the weights, and no verdict says more than was compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

SCRIPT = """\
import torch
from torch import nn
from torch.nn.functional import mse_loss
torch.manual_seed(0)
model = nn.Linear(3, 2)
optimizer = torch.optim.{optimizer}
data = [(torch.randn(5, 3), torch.randn(5, 2)) for _ in range(3 * {windows})]
for i, (x, y) in enumerate(data):
    loss = mse_loss(model(x), y)
    {loss}.backward()
    {clip}
    if (i + 1) % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
ADAM = "Adam(model.parameters(), lr=0.01)"
SGD = "SGD(model.parameters(), lr=0.01)"


def script(loss: str, optimizer: str = SGD, windows: int = 3, clip: str = "pass") -> str:
    return SCRIPT.format(loss=loss, optimizer=optimizer, windows=windows, clip=clip)


@pytest.mark.parametrize("optimizer", [SGD, ADAM])
def test_a_stated_coefficient_holds_for_the_update_too(optimizer: str, tmp_path: Path) -> None:
    # Three times the large batch's gradient of the mean, which is that of three times the mean.
    right = watch_source(script("loss", optimizer), tmp_path, loss_coefficient=3)
    assert right.verdict is Verdict.EQUIVALENT
    assert [(w.grad_rel_error, w.param_rel_error) for w in right.windows] == [(0.0, 0.0)] * 3
    wrong = watch_source(script("(loss / 3)", optimizer), tmp_path, loss_coefficient=3)
    assert wrong.verdict is Verdict.DEVIATES
    assert [w.grad_rel_error for w in wrong.windows] == pytest.approx([2 / 3] * 3)
    if optimizer == SGD:
        assert [w.param_rel_error for w in wrong.windows] == pytest.approx([2 / 3] * 3, rel=1e-4)


@pytest.mark.parametrize("turn", [1, 2])
def test_plain_sgd_moves_as_wrongly_as_its_gradient_says(turn: int, tmp_path: Path) -> None:
    # What the loop divides by is known only when several windows have been seen, and then for all of them.
    result = watch_source(script(f"(loss / (3 if i // 3 < {turn} else 1))", windows=5), tmp_path)
    pairs = [(w.grad_rel_error, w.param_rel_error) for w in result.windows]
    assert all(update is None or update == pytest.approx(error, abs=1e-4) for error, update in pairs)
    assert not any("hides" in note for note in result.notes)


def test_a_clip_and_not_plain_sgd_makes_the_update_right(tmp_path: Path) -> None:
    clip = "(i + 1) % 3 == 0 and nn.utils.clip_grad_norm_(model.parameters(), 0.001)"
    result = watch_source(script("loss", clip=clip), tmp_path)
    assert result.windows[0].grad_rel_error == pytest.approx(2.0, rel=1e-4)
    assert result.windows[0].param_rel_error == pytest.approx(0.0, abs=1e-3)
    assert not any("hides" in note for note in result.notes)


def test_adam_hides_what_its_gradient_is_off_by(tmp_path: Path) -> None:
    result = watch_source(script("loss", ADAM), tmp_path)
    assert any(note.startswith("Adam") and "masks most of the error" in note for note in result.notes)


def test_what_was_measured_before_the_loop_had_shown_its_k_is_not_reported(tmp_path: Path) -> None:
    # The first window closes after one micro-batch: of that alone a division by 3 might be the objective's.
    source = script("(loss / 3)", windows=5).replace("(i + 1) % 3 == 0", "i in range(0, 99, 3)")
    result = watch_source(source, tmp_path, trajectory=True)
    assert result.windows[0].grad_rel_error == pytest.approx(2 / 3)
    assert result.windows[0].param_rel_error is None
    assert any(note.startswith("1 of 5 updates are not compared (the first is in window 0)") for note in result.notes)
    # What the reference run did not do right at its first step it carries along.
    assert {window.drift for window in result.windows} == {None}


def test_what_was_not_compared_does_not_deviate(tmp_path: Path) -> None:
    # One term is divided and the other is not: no one factor makes a micro-batch's gradient what it should be.
    loss = "(loss / accum_steps + model(x).abs().mean())"
    source = script(loss, windows=4).replace("for i,", "accum_steps = 3\nfor i,")
    # (A replay takes the terms apart.)
    result = watch_source(source, tmp_path, reference="ledger")
    assert {w.verdict for w in result.windows} == {Verdict.INCONCLUSIVE}
    assert [d.mistake.code for d in result.diagnosis] == ["GA101"]
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.reason.startswith("4 of 4 steps could not be compared: ")
    assert result.reason.endswith("; a mistake was diagnosed nevertheless")
    # As README's table says: a mistake was diagnosed.
    assert result.exit_status == 1


def test_what_was_neither_compared_nor_diagnosed_is_not_decided(tmp_path: Path) -> None:
    source = script("loss").replace("optimizer.step()", "model.weight.grad.sign_(); optimizer.step()")
    result = watch_source(source, tmp_path)
    assert (result.verdict, result.diagnosis, result.exit_status) == (Verdict.INCONCLUSIVE, (), 3)


@pytest.mark.parametrize(
    ("loss", "codes"),
    [
        # One count for both terms: it makes the sum whole, and of the mean it is not known what it is there for.
        ("(fit + 0.1 * spread) / total", []),
        # Each has its own, or none: then it is known.
        ("fit / total + 0.1 * spread", ["GA101"]),
        ("fit / total + 0.1 * spread / accum_steps", []),
        # It makes both whole.
        ("(fit + 0.1 * apart) / total", []),
    ],
)
def test_a_count_of_one_terms_units_has_no_other_role_for_another(loss: str, codes: list[str], tmp_path: Path) -> None:
    source = f"""\
import torch
from torch import nn
from torch.nn.functional import cross_entropy
torch.manual_seed(0)
model = nn.Linear(4, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accum_steps = 2
data = [(torch.randn(9, 4), torch.tensor([1] * count + [-100] * (9 - count))) for count in (4, 7, 5, 3, 6, 6)]
for start in range(0, len(data), accum_steps):
    window = data[start : start + accum_steps]
    total = sum(int((y != -100).sum()) for _, y in window)
    for x, y in window:
        out = model(x)
        fit = cross_entropy(out, y, reduction="sum")
        spread = out.pow(2).mean()
        apart = out.logsumexp(1)[y != -100].pow(2).sum()
        loss = {loss}
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    result = watch_source(source, tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes
    undiagnosed = Verdict.EQUIVALENT if "apart)" in loss else Verdict.INCONCLUSIVE
    assert result.verdict is (Verdict.DEVIATES if codes else undiagnosed), result.reason
    assert any("Mean is divided (line 17)" in note for note in result.notes) is ("+ 0.1 * spread)" in loss)
    # Why nothing was compared: each term by itself is known, and not what the one factor of both is there for.
    assert ("which factors of a loss scale the accumulation" in result.reason) is ("+ 0.1 * spread)" in loss)


TWO_TERMS = """\
import torch
from dataclasses import dataclass
from torch import nn
torch.manual_seed(0)
@dataclass
class Settings:
    accumulate: int = 4
    beta: float = {beta}
cfg = Settings()
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(48, 3), torch.randn(48, 2)
for window in torch.randperm(48).view(4, cfg.accumulate, 3):
    for rows in window:
        out = model(x[rows])
        fit, spread = nn.functional.mse_loss(out, y[rows]), out.abs().mean()
        ({loss}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ONE_DIVIDED = "fit / cfg.accumulate + cfg.beta * spread"
BOTH_DIVIDED = "(fit + cfg.beta * spread) / cfg.accumulate"


@pytest.mark.parametrize(
    ("loss", "beta", "verdict"),
    [
        (ONE_DIVIDED, 0.25, Verdict.INCONCLUSIVE),
        (ONE_DIVIDED, 0.3, Verdict.DEVIATES),
        (BOTH_DIVIDED, 0.25, Verdict.EQUIVALENT),
        (BOTH_DIVIDED, 0.3, Verdict.EQUIVALENT),
        ("fit / cfg.accumulate + cfg.beta * spread / cfg.accumulate", 0.25, Verdict.EQUIVALENT),
    ],
)
def test_a_setting_of_one_term_that_equals_what_divides_another(
    loss: str, beta: float, verdict: Verdict, tmp_path: Path
) -> None:
    """Nothing counts to K, and one term is divided by what is called that: 0.25 is another setting."""
    result = watch_source(TWO_TERMS.format(loss=loss, beta=beta), tmp_path)
    assert result.verdict is verdict, result.reason
    settled = [note for note in result.notes if "divide by accumulate itself" in note]
    assert bool(settled) is (verdict is Verdict.INCONCLUSIVE)
    assert not any("--loss-coefficient" in note for note in settled)


@pytest.mark.parametrize(
    ("loss", "verdict"),
    [
        ("(loss * (0.5 / K))", Verdict.EQUIVALENT),
        ("loss.mul(0.5 / K)", Verdict.EQUIVALENT),
        ("(0.5 / K * loss)", Verdict.EQUIVALENT),
        ("(loss * (0.5 / (K + 1)))", Verdict.DEVIATES),
        ("(loss * 0.5)", Verdict.DEVIATES),
    ],
)
def test_a_literal_above_k_is_a_factor_of_its_own(loss: str, verdict: Verdict, tmp_path: Path) -> None:
    source = script(loss).replace("% 3", "% K").replace("torch.manual_seed(0)", "torch.manual_seed(0)\nK = 3")
    assert watch_source(source, tmp_path).verdict is verdict
