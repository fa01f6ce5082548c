"""What ends a loop's windows, however the source writes it, is K: a constant of another name that equals it is not."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

HEAD = """\
import itertools
import torch
from torch import nn
K = 3
HEADS = 3
data = torch.utils.data.TensorDataset(torch.randn({rows}, 5), torch.randn({rows}, 2))
loader = torch.utils.data.DataLoader(data, batch_size=5)
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss()
"""
LOOPS = {
    "a count": """
count = 0
for x, y in loader:
    {loss}.backward()
    count += 1
    if count == K:
        {gradients}
        optimizer.step()
        optimizer.zero_grad()
        count = 0
""",
    "a count that may exceed it": """
count = 0
for x, y in loader:
    {loss}.backward()
    count += 1
    if count >= K:
        {gradients}
        optimizer.step()
        optimizer.zero_grad()
        count = 0
""",
    "slices": """
batches = list(loader)
for start in range(0, len(batches), K):
    for x, y in batches[start:start + K]:
        {loss}.backward()
    {gradients}
    optimizer.step()
    optimizer.zero_grad()
""",
    "a range of turns": """
batches = iter(loader)
for _ in range(len(loader) // K):
    for _ in range(K):
        x, y = next(batches)
        {loss}.backward()
    {gradients}
    optimizer.step()
    optimizer.zero_grad()
""",
    "islice": """
batches = iter(loader)
for _ in range(len(loader) // K):
    for x, y in itertools.islice(batches, K):
        {loss}.backward()
    {gradients}
    optimizer.step()
    optimizer.zero_grad()
""",
}
every_loop = pytest.mark.parametrize("loop", LOOPS.values(), ids=list(LOOPS))
LOSS = "criterion(model(x), y)"
DIVIDED = "for p in model.parameters(): p.grad.div_(K)"


def codes(loop: str, loss: str, gradients: str = "pass") -> list[str]:
    source = HEAD.format(rows=45) + loop.format(loss=loss, gradients=gradients)
    return codes_in(source)


@every_loop
@pytest.mark.parametrize("name", ["HEADS", "K"])
def test_a_constant_of_another_name_is_the_objectives(loop: str, name: str) -> None:
    # 9 micro-batches are three windows of K: divided by K once, and by the number of heads, or by K again.
    wanted = ["GA102"] if name == "K" else []
    assert codes(loop, f"({LOSS} / K / {name})") == wanted
    assert codes(loop, f"({LOSS} / {name})", DIVIDED) == wanted


@every_loop
def test_a_division_by_another_constant_alone_does_not_scale(loop: str) -> None:
    assert codes(loop, f"({LOSS} / K)") == []
    assert codes(loop, f"({LOSS})") == ["GA101"]


TWO_RATES = """\
import torch
from torch import nn

K, critic_steps = {k}, {critic_steps}
data = [(torch.randn(2, 4), torch.randn(2, 3)) for _ in range({batches})]
model, critic = nn.Linear(4, 3), nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)

for i, (x, y) in enumerate(data):
    loss = nn.functional.mse_loss(model(x), y){scale}
    loss.backward()
    (critic(x).pow(2).mean() / critic_steps).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
    if (i + 1) % critic_steps == 0:
        critic_optimizer.step()
        critic_optimizer.zero_grad()
"""


@pytest.mark.parametrize(("k", "critic_steps", "batches"), [(3, 1, 6), (2, 5, 10), (6, 2, 12), (4, 4, 8)])
def test_the_window_of_a_step_is_bounded_by_its_own_test(k: int, critic_steps: int, batches: int) -> None:
    def codes(scale: str) -> list[str]:
        source = TWO_RATES.format(k=k, critic_steps=critic_steps, batches=batches, scale=scale)
        return codes_in(source)

    assert codes(" / K") == []
    assert codes("") == ["GA101"]
    assert codes(" / K / K") == ["GA102"]


@pytest.mark.parametrize(("clear", "codes"), [("pass", []), ("optimizer.zero_grad()", ["GA201"])])
def test_k_is_k_though_a_loss_has_as_many_terms(clear: str, codes: list[str]) -> None:
    """The flush, divided by what it holds, makes of four micro-batches a window of three and one of one."""
    source = f"""
import torch
from torch import nn
K = 3
loader = [(torch.randn(2, 4), torch.randn(2, 3)) for _ in range(4)]
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    {clear}
    out = model(x)
    loss = nn.functional.mse_loss(out, y) + out.pow(2).mean() + out.abs().mean()
    (loss / min(K, len(loader) - i // K * K)).backward()
    if (i + 1) % K == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
"""
    assert codes_in(source) == codes


GROWING = """
import numpy as np
import torch.nn.functional as F

def fit(net, dl, opt, nominal, size, warm, epochs):
    every, n = max(round(nominal / size), 1), len(dl)
    for epoch in range(epochs):
        for i, (x, y) in enumerate(dl):
            turn = i + n * epoch
            if turn <= warm:
                every = max(1, np.interp(turn, [0, warm], [1, nominal / size]).round())
            (F.mse_loss(net(x), y) / every).backward()
            if {test}:
                opt.step()
                opt.zero_grad()
"""


@pytest.mark.parametrize(("test", "codes"), [("turn % every == 0", ["GA302"]), ("(turn + 1) % every == 0", [])])
def test_a_boundary_that_counts_to_a_k_which_grows_in_a_warm_up(test: str, codes: list[str]) -> None:
    assert codes_in(GROWING.format(test=test)) == codes


GATED = """
def train(model, loader, optimizer, criterion, args, epochs):
    {before}
    for epoch in range(epochs):
        {at_epoch}
        for x, y in loader:
            loss = {loss}
            loss.backward()
            waiting += 1
            {gate}
            optimizer.step()
            optimizer.zero_grad()
            waiting = 0
"""
GATES = {
    "fewer": "if waiting < args.passes:\n                continue",
    "another number": "if waiting != args.passes:\n                print(waiting)\n                continue",
    "or else": "if waiting < args.passes:\n                continue\n            else:\n                print(x)",
}


@pytest.mark.parametrize("gate", GATES.values(), ids=list(GATES))
def test_what_ends_the_turn_before_a_step_decides_on_it(gate: str) -> None:
    # A count that goes on from epoch to epoch makes every window K; one that begins again leaves the remainder there.
    goes_on = {"gate": gate, "before": "waiting = 0", "at_epoch": "pass"}
    divided = f"{LOSS} / args.passes"
    assert codes_in(GATED.format(loss=divided, **goes_on)) == []
    assert codes_in(GATED.format(loss=LOSS, **goes_on)) == ["GA101"]
    begins_again = {"gate": gate, "before": "optimizer.zero_grad()", "at_epoch": "waiting = 0"}
    assert codes_in(GATED.format(loss=divided, **begins_again)) == ["GA301"]


def test_a_function_that_returns_before_its_step_decides_on_it() -> None:
    loop = """
class Trainer:
    def __init__(self, model, optimizer, passes):
        self.model, self.optimizer, self.passes, self.waiting = model, optimizer, passes, 0

    def update(self):
        self.waiting += 1
        if self.waiting < self.passes:
            return
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.waiting = 0

    def train(self, loader, criterion):
        for x, y in loader:
            {loss}.backward()
            self.update()
"""
    assert codes_in(loop.format(loss="criterion(self.model(x), y)"), "GA1") == ["GA101"]
    assert codes_in(loop.format(loss="(criterion(self.model(x), y) / self.passes)"), "GA1") == []


def test_what_ends_the_turn_before_its_backward_or_after_its_step_decides_on_none() -> None:
    loop = """
def train(model, loader, optimizer, criterion, args, K):
    for i, (x, y) in enumerate(loader):
        if i < args.begin:
            continue
        (criterion(model(x), y) / K).backward()
        if (i + 1) % K == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
        if i < args.quiet:
            continue
        print(i)
"""
    # The remainder is divided by K; nothing is known to be skipped.
    assert codes_in(loop) == ["GA103"]


ROUNDS = """
def train(model, loader, optimizer, criterion, args):
    for _ in range(args.rounds):
        {first}
        for i, (x, y) in enumerate(loader):
            ({loss} / args.every).backward()
            {inside}
            if (i + 1) % args.{end} == 0:
                break
        {last}
"""
STEP = "optimizer.step(); optimizer.zero_grad()"


def test_a_number_at_whose_multiples_a_loop_ends_that_steps_is_no_window() -> None:
    held = f"if (i + 1) % args.every == 0: {STEP}"
    rounds = ROUNDS.format(loss=LOSS, first="pass", inside=held, last="pass", end="in_a_round")
    assert codes_in(rounds) == ["GA301"]  # the rest of each round joins the next one's first window
    whole = ROUNDS.format(
        loss=LOSS, first="pass", inside=f"if (i + 1) % args.every == 0: {STEP}", last="pass", end="every"
    )
    assert codes_in(whole) == []
    window = ROUNDS.format(loss=LOSS, first="pass", inside="pass", last=STEP, end="every")
    assert codes_in(window) == []
