"""lint on what loops do to gradients by hand, and on parameters that are gathered by hand."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

LOOP = """
import torch
from torch import nn
from torch.nn import functional as F
body, head = nn.Linear(6, 8), nn.Linear(8, 3)
{gathered}
optimizer = torch.optim.SGD(params, lr=0.1)
X, Y = torch.randn(32, 6), torch.randint(0, 3, (32,))
K = 4
for i, (x, y) in enumerate(zip(X.split(4), Y.split(4))):
    loss = F.cross_entropy(head(body(x)), y){scale}
    loss.backward()
    if (i + 1) % K == 0:
        {divided}
        optimizer.step()
        {cleared}
"""

GATHERED = {
    "list(body.parameters()) + list(head.parameters())": True,
    "[*body.parameters(), *head.parameters()]": True,
    "[p for m in (body, head) for p in m.parameters()]": True,
    "list(filter(lambda p: p.requires_grad, nn.Sequential(body, head).parameters()))": True,
    "[]\nfor m in (body, head): params.extend(m.parameters())": True,
    "[]\nfor m in (body, head): params += list(m.parameters())": True,
    # Whose parameters these are is unknown.
    "gather(body, head)": False,
    "list({id(p): p for m in (body, head) for p in m.parameters()}.values())": False,
}

CLEARED = [
    "for p in params: p.grad.zero_()",
    "for p in params: p.grad = None",
    "for p in params: p.grad.data.zero_()",
    "for p in params: p.grad.mul_(0)",
    "[p.grad.zero_() for p in params]",
    "torch._foreach_zero_([p.grad for p in params])",
    "for p in params:\n            if p.grad is not None:\n                p.grad.detach_(); p.grad.zero_()",
]


def codes(gathered: str, cleared: str, *, scale: str = " / K", divided: str = "pass") -> list[str]:
    source = LOOP.format(gathered=f"params = {gathered}", cleared=cleared, scale=scale, divided=divided)
    return codes_in(source)


@pytest.mark.parametrize("gathered", GATHERED)
@pytest.mark.parametrize("cleared", CLEARED)
def test_gradients_that_are_cleared_by_hand_are_cleared(gathered: str, cleared: str) -> None:
    assert codes(gathered, cleared) == []


@pytest.mark.parametrize("gathered", [text for text, known in GATHERED.items() if known])
def test_what_is_wrong_beside_them_is_found_where_it_is_known_whose_they_are(gathered: str) -> None:
    assert codes(gathered, CLEARED[0], scale="") == ["GA101"]
    assert codes(gathered, "pass") == ["GA203"]


@pytest.mark.parametrize(
    "divided",
    [
        "for p in params: p.grad /= K",
        "[p.grad.div_(K) for p in params if p.grad is not None]",
        "torch._foreach_div_([p.grad for p in params], K)",
    ],
)
@pytest.mark.parametrize("gathered", GATHERED)
def test_gradients_that_are_divided_by_hand_are_divided(gathered: str, divided: str) -> None:
    assert codes(gathered, "optimizer.zero_grad()", scale="", divided=divided) == []


def test_tensors_of_ones_own_are_cleared_too() -> None:
    source = """
import torch
w, b = torch.randn(6, 3, requires_grad=True), torch.zeros(3, requires_grad=True)
optimizer = torch.optim.SGD([w, b], lr=0.1)
X, Y = torch.randn(32, 6), torch.randint(0, 3, (32,))
for i, (x, y) in enumerate(zip(X.split(4), Y.split(4))):
    (torch.nn.functional.cross_entropy(x @ w + b, y) / 4).backward()
    if i % 4 == 3:
        optimizer.step()
        w.grad.zero_()
        b.grad = None
"""
    assert lint_source(source, "train.py") == []


COUNTED = """
import torch
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
X, Y = torch.randn({samples}, 6), torch.randint(0, 3, ({samples},))
seen = 0
for x, y in zip(X.split(5), Y.split(5)):
    (torch.nn.functional.cross_entropy(model(x), y) / 4).backward()
    seen += len(x)
    if seen >= 20:
        optimizer.step()
        optimizer.zero_grad()
        seen = 0
"""


@pytest.mark.parametrize(("samples", "expected"), [(40, []), (50, ["GA301"])])
def test_the_samples_of_a_split_are_counted(samples: int, expected: list[str]) -> None:
    assert codes_in(COUNTED.format(samples=samples)) == expected


FLUSHED = """
import torch
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
X, Y = torch.randn({samples}, 6), torch.randint(0, 3, ({samples},))
batches = list(zip(X.split(4), Y.split(4)))
for i, (x, y) in enumerate(batches):
    (torch.nn.functional.cross_entropy(model(x), y) / 4).backward()
    if (i + 1) % 4 == 0 or i == len(batches) - 1:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(("samples", "expected"), [(32, []), (40, ["GA103"])])
def test_a_list_of_zipped_batches_has_a_length(samples: int, expected: list[str]) -> None:
    assert codes_in(FLUSHED.format(samples=samples)) == expected


def test_rows_are_cut_out_in_the_first_of_several_dimensions() -> None:
    source = """
import torch
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
X, Y = torch.randn(32, 6), torch.randint(0, 3, (32,))
for i in range(0, 32, 4):
    (torch.nn.functional.cross_entropy(model(X[i:i + 4, :4]), Y[i:i + 4]){scale}).backward()
    if i // 4 % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""
    assert lint_source(source.format(scale=" / 4"), "train.py") == []
    assert codes_in(source.format(scale="")) == ["GA101"]


CONFIGURED = """
import torch
from types import SimpleNamespace
settings = {settings}
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
X, Y = torch.randn(40, 6), torch.randint(0, 3, (40,))
micro = 0
for x, y in zip(X.split(4), Y.split(4)):
    (torch.nn.functional.cross_entropy(model(x), y) / settings.accumulate).backward()
    micro += 1
    if micro % settings.accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Ten micro-batches are two windows of 5, and three of 3 with one left over.
        ("SimpleNamespace(accumulate=5, lr=0.1)", []),
        ("SimpleNamespace(accumulate=3, lr=0.1)", ["GA301"]),
    ],
)
def test_settings_in_a_namespace_are_read(settings: str, expected: list[str]) -> None:
    assert codes_in(CONFIGURED.format(settings=settings)) == expected


BOUNDARY = """
import torch
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
X, Y = torch.randn(40, 6), torch.randint(0, 3, (40,))
K = 4
full, rest = divmod(10, K)
for i, (x, y) in enumerate(zip(X.split(4), Y.split(4))):
    window, place = divmod(i, K)
    size = K if window < full else rest
    (torch.nn.functional.cross_entropy(model(x), y) / {divisor}).backward()
    if {boundary}:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("divisor", "boundary", "expected"),
    [
        ("size", "place == size - 1", []),
        ("K", "place == size - 1", ["GA103"]),
        ("K", "True", ["GA304"]),
        # Batches of 4, K = 4, and an unknown boundary: it need not hold every time.
        ("K", "is_boundary(i)", []),
        ("K", "i in boundaries", []),
        ("K", "boundaries[i]", []),
    ],
)
def test_a_step_on_an_open_condition_is_not_at_every_batch(divisor: str, boundary: str, expected: list[str]) -> None:
    source = BOUNDARY.format(divisor=divisor, boundary=boundary)
    assert codes_in(source) == expected


@pytest.mark.parametrize(("divisor", "expected"), [("len(part)", []), ("4", ["GA103"]), ("1", ["GA101"])])
def test_windows_are_cut_out_of_a_list_of_zipped_batches(divisor: str, expected: list[str]) -> None:
    source = f"""
import torch
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
X, Y = torch.randn(40, 6), torch.randint(0, 3, (40,))
batches = list(zip(X.split(4), Y.split(4)))
for start in range(0, len(batches), 4):
    part = batches[start:start + 4]
    for x, y in part:
        (torch.nn.functional.cross_entropy(model(x), y) / {divisor}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    assert codes_in(source) == expected


WITHOUT_GRAPHS = """
import torch
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
X, Y = torch.randn(32, 6), torch.randint(0, 3, (32,))
K = 4

@torch.no_grad()
def average(parameters, number):
    for p in parameters:
        {body}

@torch.no_grad()
def update():
    optimizer.step()
    optimizer.zero_grad()

@torch.no_grad()
def evaluate(batches):
    return sum(torch.nn.functional.cross_entropy(model(x), y).item() for x, y in batches)

for i, (x, y) in enumerate(zip(X.split(4), Y.split(4))):
    torch.nn.functional.cross_entropy(model(x), y).backward()
    if (i + 1) % K == 0:
        average(model.parameters(), K)
        update()
        evaluate([(x, y)])
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("p.grad /= number", []),
        ("p.grad.div_(number)", []),
        ("p.grad.mul_(1 / number)", []),
        ("p.add_(1e-4 * torch.randn_like(p))", ["GA101"]),
    ],
)
def test_functions_without_graphs_act_on_gradients_all_the_same(body: str, expected: list[str]) -> None:
    assert codes_in(WITHOUT_GRAPHS.format(body=body)) == expected


OWN_OPTIMIZER = """
import torch
from torch import optim

class Signs(optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad.sign(), alpha=-group["lr"])

class Wrapped:
    def __init__(self, base):
        self.base, self.steps = base, 0

    @torch.no_grad()
    def step(self):
        self.base.step()
        self.steps += 1

    def zero_grad(self):
        self.base.zero_grad()

class Planned(optim.Optimizer):
    def __init__(self, params, plan):
        super().__init__(params, dict(plan=plan))

    def rates(self):
        found = []
        for group in self.param_groups:
            found.append(group["plan"].rates())
        return found

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                torch.nn.utils.clip_grad_norm_(p, 1.0)
                p.data.add_(p.grad.data, alpha=-self.rates()[0])

class Parted(optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    def step(self, closure=None):
        for group in self.param_groups:
            self.move(group)

    def move(self, group):
        for p in group["params"]:
            torch.nn.utils.clip_grad_norm_(p, 1.0)
            p.data.add_(p.grad.data, alpha=-group["lr"])

model = torch.nn.Linear(6, 3)
updater = {made}
X, Y = torch.randn(32, 6), torch.randint(0, 3, (32,))
for i, (x, y) in enumerate(zip(X.split(4), Y.split(4))):
    (torch.nn.functional.cross_entropy(model(x), y){scale}).backward()
    if i % 4 == 3:
        updater.step()
        updater.zero_grad()
"""


@pytest.mark.parametrize(
    "made",
    [
        "Signs(model.parameters(), lr=0.1)",
        "Wrapped(optim.SGD(model.parameters()))",
        "Wrapped(Signs(model.parameters(), 1))",
        "Planned(model.parameters(), plan)",
        "Parted(model.parameters(), lr=0.1)",
    ],
)
def test_an_optimizer_of_ones_own_steps(made: str) -> None:
    right, wrong = (OWN_OPTIMIZER.format(made=made, scale=scale) for scale in (" / 4", ""))
    assert lint_source(right, "train.py") == []
    assert codes_in(wrong) == ["GA101"]


DIVIDES_WHEN_ASKED = """
import torch

class Steady(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    def step(self, closure=None):
        {step}
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad.data, alpha=-group["lr"])

    def divide(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.div_(4)

model = torch.nn.Linear(6, 3)
updater = Steady(model.parameters(), 0.1)
X, Y = torch.randn(32, 6), torch.randint(0, 3, (32,))
for i, (x, y) in enumerate(zip(X.split(4), Y.split(4))):
    torch.nn.functional.cross_entropy(model(x), y).backward()
    if i % 4 == 3:
        {loop}
        updater.step()
        updater.zero_grad()
"""


def test_an_optimizer_that_does_more_than_it_steps_when_it_is_asked_to() -> None:
    assert codes_in(DIVIDES_WHEN_ASKED.format(step="pass", loop="updater.divide()")) == []
    assert codes_in(DIVIDES_WHEN_ASKED.format(step="self.divide()", loop="updater.divide()")) == []


def test_what_moves_weights_by_hand_is_no_clearing_in_the_middle_of_a_window() -> None:
    source = """
import torch
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
X, Y = torch.randn(32, 6), torch.randint(0, 3, (32,))
moved = {}

@torch.no_grad()
def climb():
    for p in model.parameters():
        moved[p] = 0.05 * p.grad
        p.add_(moved[p])
    optimizer.zero_grad()

@torch.no_grad()
def descend():
    for p in model.parameters():
        p.sub_(moved[p])
    optimizer.step()
    optimizer.zero_grad()

batches = list(zip(X.split(4), Y.split(4)))
for j in range(0, 8, 2):
    for x, y in batches[j:j + 2]:
        (torch.nn.functional.cross_entropy(model(x), y) / 2).backward()
    climb()
    for x, y in batches[j:j + 2]:
        (torch.nn.functional.cross_entropy(model(x), y) / 2).backward()
    descend()
"""
    assert lint_source(source, "train.py") == []
