"""verify on two networks that train against each other, K = 3 micro-batches of 5 rows to a turn.

The generator's loss flows through the discriminator and fills its gradients too. What the discriminator's steps should
get, its own loss over the turn's data as one batch, is computed here, before each of them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

pytestmark = pytest.mark.usefixtures("in_float64")

K, ROWS, TURNS = 3, 5, 3


class Game:
    """Two networks with an optimizer each; ``ratios`` are |g| / |g_true| of the discriminator's steps."""

    def __init__(self, *, apart: bool, loader: bool, scaled: bool) -> None:
        torch.manual_seed(1)
        self.generator = nn.Linear(2, 4)
        self.judge = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
        self.of_generator = torch.optim.Adam(self.generator.parameters())
        self.of_judge = torch.optim.Adam(self.judge.parameters())
        self.apart, self.ratios = apart, list[float]()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=scaled)
        given = torch.randn(K * ROWS * TURNS, 4), torch.randn(K * ROWS * TURNS, 2)
        drawn = [tuple(own) for own in DataLoader(TensorDataset(*given), batch_size=ROWS)] if not loader else None
        self._source = iter(drawn or DataLoader(TensorDataset(*given), batch_size=ROWS))
        self.batches: list[tuple[torch.Tensor, torch.Tensor]] = []

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.batches.append(tuple(next(self._source)))
        return self.batches[-1]

    def _losses(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        real, fake = self.judge(x), self.judge(self.generator(z).detach())
        wanted, other = torch.ones_like(real), torch.zeros_like(fake)
        return binary_cross_entropy_with_logits(real, wanted), binary_cross_entropy_with_logits(fake, other)

    def send_back_judges(self, x: torch.Tensor, z: torch.Tensor) -> None:
        real, fake = self._losses(x, z)
        if self.apart:
            self.scaler.scale(real / K).backward()
            self.scaler.scale(fake / K).backward()
        else:
            self.scaler.scale((real + fake) / K).backward()

    def send_back_generators(self, z: torch.Tensor) -> None:
        made = self.judge(self.generator(z))
        loss = binary_cross_entropy_with_logits(made, torch.ones_like(made)) / K
        self.scaler.scale(loss).backward()

    def step_judge(self) -> None:
        x, z = (torch.cat(own) for own in zip(*self.batches[-K:], strict=True))
        own = list(self.judge.parameters())
        true = torch.autograd.grad(sum(self._losses(x, z)), own)
        got = [p.grad / self.scaler.get_scale() for p in own if p.grad is not None]
        norm, due = (torch.cat([g.flatten() for g in each]).norm() for each in (got, true))
        self.ratios.append(float(norm / due))
        self.scaler.step(self.of_judge)

    def step_generator(self) -> None:
        self.scaler.step(self.of_generator)
        self.scaler.update()

    def judges_turn(self) -> None:
        for _ in range(K):
            self.send_back_judges(*self.batch())
        self.step_judge()

    def generators_turn(self) -> None:
        for _, z in self.batches[-K:]:
            self.send_back_generators(z)
        self.step_generator()


def cleared_right_before(game: Game) -> None:
    game.of_judge.zero_grad()
    game.judges_turn()
    game.of_generator.zero_grad()
    game.generators_turn()


def frozen_meanwhile(game: Game) -> None:
    game.judges_turn()
    game.of_judge.zero_grad()
    game.judge.requires_grad_(False)
    game.generators_turn()
    game.judge.requires_grad_(True)
    game.of_generator.zero_grad()


def cleared_too_early(game: Game) -> None:
    game.judges_turn()
    game.of_judge.zero_grad()
    game.generators_turn()
    game.of_generator.zero_grad()


def never_cleared(game: Game) -> None:
    game.judges_turn()
    game.of_generator.zero_grad()
    game.generators_turn()


def both_cleared_first(game: Game) -> None:
    game.of_judge.zero_grad()
    game.of_generator.zero_grad()
    own = [game.batch() for _ in range(K)]
    game.generators_turn()
    for x, z in own:
        game.send_back_judges(x, z)
    game.step_judge()


def stepped_together(game: Game) -> None:
    for _ in range(K):
        x, z = game.batch()
        game.send_back_judges(x, z)
        game.send_back_generators(z)
    game.step_judge()
    game.step_generator()
    game.of_judge.zero_grad()
    game.of_generator.zero_grad()


def played(
    turn: Callable[[Game], None], *, apart: bool = False, loader: bool = True, scaled: bool = False
) -> tuple[VerifyResult, list[float]]:
    with observe() as observation:
        game = Game(apart=apart, loader=loader, scaled=scaled)
        for _ in range(TURNS):
            turn(game)
    return observation.result(), game.ratios


def judges_windows(result: VerifyResult) -> list[float | None]:
    """The judge steps first in every turn."""
    return [w.grad_norm_ratio for w in result.windows][::2]


WAYS = [{}, {"apart": True}, {"loader": False}, {"scaled": True}]


@pytest.mark.parametrize("ways", WAYS, ids=str)
@pytest.mark.parametrize("turn", [cleared_right_before, frozen_meanwhile])
def test_right_turns_are_right(turn: Callable[[Game], None], ways: dict[str, bool]) -> None:
    result, ratios = played(turn, **ways)
    assert ratios == pytest.approx([1.0] * TURNS)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


@pytest.mark.parametrize("ways", WAYS, ids=str)
@pytest.mark.parametrize("turn", [cleared_too_early, never_cleared])
def test_what_the_generators_loss_leaves_is_seen(turn: Callable[[Game], None], ways: dict[str, bool]) -> None:
    result, ratios = played(turn, **ways)
    assert ratios[0] == pytest.approx(1.0) and abs(ratios[-1] - 1.0) > 0.01
    assert result.verdict is Verdict.DEVIATES
    assert "GA204" in {d.mistake.code for d in result.diagnosis}
    if turn is cleared_too_early:
        assert judges_windows(result) == pytest.approx(ratios)


def test_the_numbers_are_right_where_nothing_is_ever_cleared() -> None:
    result, ratios = played(never_cleared)
    assert judges_windows(result) == pytest.approx(ratios)
    assert {d.mistake.code for d in result.diagnosis} <= {"GA203", "GA204"}


@pytest.mark.parametrize("turn", [both_cleared_first, stepped_together])
def test_what_the_generators_loss_adds_in_the_same_turn_is_seen(turn: Callable[[Game], None]) -> None:
    result, ratios = played(turn)
    assert any(abs(ratio - 1.0) > 0.01 for ratio in ratios)
    assert result.verdict is Verdict.DEVIATES


def test_right_turns_without_a_loader_are_right_where_each_loss_has_a_backward() -> None:
    result, ratios = played(cleared_right_before, apart=True, loader=False)
    assert ratios == pytest.approx([1.0] * TURNS)
    assert result.verdict is Verdict.EQUIVALENT
