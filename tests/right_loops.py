"""Right loops with the constants, warm-ups, log lines, penalties and several losses that objectives really have.

Plain ones step at every micro-batch, the others accumulate. Each is a text for a loss, put into a loop, and into the
loop over its true large batches (`large_batches`), which is plain training and needs no interpretation.
"""

from __future__ import annotations

from dataclasses import dataclass

ROWS = 5
STEPS = 3
"""K, unlike the rows of a micro-batch and the numbers of most objectives."""

HEAD = """\
import math
from types import SimpleNamespace
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
X, T, Y = torch.randn({samples}, 6), torch.randn({samples}, 3), torch.randint(0, 3, ({samples},))
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
w = model[0].weight
mean, spread = nn.Parameter(torch.randn(7)), nn.Parameter(torch.randn(7))
optimizer = torch.optim.SGD([*model.parameters(), mean, spread], lr=0.05)
loader = list(zip(X.split({rows}), T.split({rows}), Y.split({rows})))
{setup}
"""

PLAIN = """\
for {counting}:
    out = model(x)
    mse, ce, huber = F.mse_loss(out, t), F.cross_entropy(out, y), F.smooth_l1_loss(out, t)
    loss = {loss}
    {cleared}
    {scaled}.backward()
    {scaling}
    optimizer.step()
    {after}
"""

ACCUMULATING = """\
K = {steps}
for i, (x, t, y) in enumerate(loader):
    step = i // K
    out = model(x)
    mse, ce, huber = F.mse_loss(out, t), F.cross_entropy(out, y), F.smooth_l1_loss(out, t)
    loss = {loss}
    loss = {scaled}
    loss.backward()
    if (i + 1) % K == 0:
        {scaling}
        optimizer.step()
        optimizer.zero_grad()
    {after}
"""


@dataclass(frozen=True)
class Loop:
    """One objective in its loop.

    ``setup`` stands before the loop, ``scaling`` between the gradients and their step, ``after`` at the end of a turn.
    """

    name: str
    loss: str
    setup: str = ""
    scaling: str = "pass"
    after: str = "pass"
    batches: int = 9

    def plain(self, *, rows: int = ROWS, **changes: str) -> str:
        """As plain training."""
        usual = {
            "counting": "step, (x, t, y) in enumerate(loader)",
            "cleared": "optimizer.zero_grad()",
            "scaled": "loss",
        }
        return self._script(PLAIN, rows, {**usual, **changes})

    def accumulating(self, **changes: str) -> str:
        """With three micro-batches a window, each divided by their number."""
        return self._script(ACCUMULATING, ROWS, {"scaled": "loss / K", "steps": str(STEPS), **changes})

    def large(self) -> str:
        """Plain training on the large batches of `accumulating`."""
        return self.plain(rows=ROWS * STEPS, after="pass")

    def _script(self, body: str, rows: int, changes: dict[str, str]) -> str:
        texts = {"loss": self.loss, "scaling": self.scaling, "after": self.after, "setup": self.setup, **changes}
        head = HEAD.format(samples=ROWS * self.batches, rows=rows, setup=texts.pop("setup"))
        return head + body.format(**texts)


ORTHOGONAL = "((w @ w.t() - torch.eye(8)) ** 2).sum()"
ENTROPY = "-(F.softmax(mean, 0) * F.log_softmax(mean, 0)).sum()"
DIVERGENCE = "0.5 * (spread.exp() + mean ** 2 - 1 - spread).sum()"
WEIGHT_DECAY = "sum(p.pow(2).sum() for p in model.parameters())"

LISTED = "def losses(a, b):\n    return [F.mse_loss(a, b), F.l1_loss(a, b), F.smooth_l1_loss(a, b)]"
SCALED = "[p.grad.{} for p in model.parameters()]"
EVALUATED = "if (step + 1) % 4 == 0: print(F.mse_loss(model(X), T).item())"

OBJECTIVES = [
    Loop("a tenth of a loss", "mse / 10"),
    Loop("a third of a loss", "mse / 3"),
    Loop("a coefficient", "0.7 * mse"),
    Loop("a division by as many as a batch has rows", "mse / 5"),
    Loop("a division by as many as a batch has elements", "mse / 15"),
    Loop("two divisions", "mse / 2 / 7"),
    Loop("a divisor in a dictionary", 'mse / cfg["scale"]', 'cfg = {"scale": 10}'),
    Loop("a divisor in a namespace", "mse / args.temperature", "args = SimpleNamespace(temperature=6.0)"),
    Loop("the mean of two losses", "(mse + ce) / 2"),
    Loop("the mean of three losses", "(mse + ce + huber) / 3"),
    Loop("the mean of five losses", "(mse + ce + huber + out.abs().mean() + out.pow(2).mean()) / 5"),
    Loop(
        "the mean of a list of losses",
        "sum(losses(out, t)) / 3",
        "def losses(a, b):\n    return [F.mse_loss(a, b), F.l1_loss(a, b), F.smooth_l1_loss(a, b)]",
    ),
    Loop("the mean over four views", "sum(F.mse_loss(model(x + 0.1 * v), t) for v in range(4)) / 4"),
    Loop("weighed losses", "0.7 * mse + 0.2 * ce + huber / 10"),
    Loop("one of two losses divided", "ce + mse / 10"),
    Loop("a warm-up", "mse * (step + 1) / 8"),
    Loop("a warm-up that ends", "mse * min(1.0, (step + 1) / 2)"),
    Loop("a decay", "0.9 ** step * mse"),
    Loop("a decay by the step", "mse / (1 + step)"),
    Loop("a temperature", "F.cross_entropy(out / 4, y)"),
    Loop("a distillation", 'F.kl_div(F.log_softmax(out / 3, 1), F.softmax(t / 3, 1), reduction="batchmean") * 9'),
    Loop("a tenth and a log line", "mse / 10", after="if step % 10 == 0: print(step)"),
    Loop(
        "a quarter and an evaluation", "mse / 4", after="if (step + 1) % 4 == 0: print(F.mse_loss(model(X), T).item())"
    ),
    Loop(
        "heads and log steps",
        "mse / HEADS",
        "LOG_EVERY = 50\nHEADS = 50",
        after="if step % LOG_EVERY == 0: print(step)",
    ),
    Loop("half of the squares of the weights", f"mse + 0.01 / 2 * {WEIGHT_DECAY}"),
    Loop("a setting's share of the squares of the weights", f'mse + cfg["l2"] * {WEIGHT_DECAY}', 'cfg = {"l2": 0.001}'),
    Loop("a divergence of the weights", f"mse + {DIVERGENCE} / 77"),
    Loop("weights that are orthogonal", f"mse + 0.01 * {ORTHOGONAL}"),
    Loop("an entropy of parameters", f"mse - 0.1 * ({ENTROPY})"),
    Loop("a difference of parameters", "mse + 0.3 * (mean[:3] - model[2].bias).abs().mean()"),
    Loop("a penalty alone is divided", f"ce + {ORTHOGONAL} / 10"),
    Loop(
        "gradients that are shrunk a little",
        "mse",
        scaling="[p.grad.mul_(0.99995) for p in optimizer.param_groups[0]['params'] if p.grad is not None]",
    ),
    Loop(
        "gradients that are shrunk",
        "mse",
        scaling="[p.grad.mul_(0.9) for p in optimizer.param_groups[0]['params'] if p.grad is not None]",
    ),
    Loop(
        "gradients that are divided",
        "mse",
        scaling="[p.grad.div_(10) for p in optimizer.param_groups[0]['params'] if p.grad is not None]",
    ),
]
