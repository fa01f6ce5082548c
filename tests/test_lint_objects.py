"""What lint follows through objects, classes and what they inherit: each form with the look-alike that it must not."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

LOOP = """\
from dataclasses import dataclass
import torch

{before}

model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = torch.nn.MSELoss()
data = torch.utils.data.TensorDataset(torch.randn({rows}, 6), torch.randn({rows}, 3))
batches = torch.utils.data.DataLoader(data, batch_size=5)
for i, (x, y) in enumerate(batches):
    loss = {loss}
    loss.backward()
    if {boundary}:
        optimizer.step()
        optimizer.zero_grad()
"""


def found(
    before: str = "",
    *,
    rows: str = "45",
    loss: str = "criterion(model(x), y)",
    boundary: str = "(i + 1) % 3 == 0",
) -> list[tuple[str, str]]:
    source = LOOP.format(before=before, rows=rows, loss=loss, boundary=boundary)
    return [(finding.mistake.code, str(finding.message)) for finding in lint_source(source, "train.py")]


SETTINGS = """\
{decorators}
class Settings:
    steps: int
    rate: float = 0.1

settings = Settings(3)
"""


@pytest.mark.parametrize("decorators", ["@dataclass", "@dataclass(frozen=True)", "@register\n@dataclass"])
def test_the_fields_of_a_data_class_are_what_it_is_called_with(decorators: str) -> None:
    settings = SETTINGS.format(decorators=decorators)
    ((code, said),) = found(settings, boundary="(i + 1) % settings.steps == 0")
    assert (code, "3 are accumulated" in said) == ("GA101", True)


def test_the_fields_of_another_class_are_not_known() -> None:
    told = found(SETTINGS.format(decorators="@register"), boundary="(i + 1) % settings.steps == 0")
    assert "GA101" in [code for code, _ in told]
    assert not [said for _, said in told if "3 are accumulated" in said]


def test_a_method_of_the_class_that_is_inherited() -> None:
    classes = """\
class Plain:
    def loss(self, out, y):
        return torch.nn.functional.mse_loss(out, y) {scaled}

class Own(Plain):
    def loss(self, out, y):
        return super().loss(out, y)

own = Own()
"""
    assert found(classes.format(scaled="/ 3"), loss="own.loss(model(x), y)") == []
    assert [code for code, _ in found(classes.format(scaled=""), loss="own.loss(model(x), y)")] == ["GA101"]


def test_what_a_class_is_given_later_is_what_it_holds() -> None:
    settings = "class Settings:\n    steps = 5\n\nSettings.steps = 3\n"
    ((code, said),) = found(settings, boundary="(i + 1) % Settings.steps == 0")
    assert (code, "3 are accumulated" in said) == ("GA101", True)


@pytest.mark.parametrize("shape", ["{rows}, 6", "({rows}, 6)", "[{rows}, 6]", "size=({rows}, 6)"])
def test_the_rows_of_data_in_any_way_to_write_its_shape(shape: str) -> None:
    """45 rows make 9 micro-batches of 5 and no remainder; 52 rows make 11."""
    for rows, expected in (("45", []), ("52", ["GA301"])):
        written = f"data = torch.utils.data.TensorDataset(torch.randn({shape.format(rows=rows)}))"
        source = LOOP.format(before="", rows=rows, loss="criterion(model(x), x) / 3", boundary="(i + 1) % 3 == 0")
        lines = [written if line.startswith("data = ") else line for line in source.splitlines()]
        lines = [line.replace("(x, y)", "(x,)") for line in lines]
        codes = codes_in("\n".join(lines) + "\n")
        assert codes == expected


@pytest.mark.parametrize("count", ["len(batches)", "num_batches"])
def test_the_last_batch_is_one_before_the_number_of_batches(count: str) -> None:
    before = "num_batches = args.num_batches"
    boundary = f"(i + 1) % 3 == 0 or i == {count} - 1"
    told = found(before, rows="args.rows", loss="criterion(model(x), y) / 3", boundary=boundary)
    assert [code for code, _ in told] == ["GA103"]


@pytest.mark.parametrize(("division", "expected"), [("", ["GA101"]), (" / len(batches)", [])])
def test_a_list_that_is_made_of_backwards_is_a_loop_over_micro_batches(division: str, expected: list[str]) -> None:
    head = LOOP.partition("for i, ")[0].format(before="", rows="45")
    source = f"""\
{head}for epoch in range(3):
    done = [(criterion(model(x), y){division}).backward() for x, y in batches if len(x) > 0]
    optimizer.step()
    optimizer.zero_grad()
"""
    assert codes_in(source) == expected


MAKES_ITS_OWN = """\
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(x)

    def configure(self, rate):
        moved = [p for p in self.parameters() if p.requires_grad]
        o = torch.optim.SGD(moved, lr=rate)
        return o, torch.optim.lr_scheduler.StepLR(o, 9)

def fit(net, other, data):
    a, moves = net.configure(0.1)
    b, _ = other.configure(0.2)
    for i, (x, y) in enumerate(data):
        {each}
        (nn.functional.mse_loss(net(x), y){scaled}).backward()
        nn.functional.mse_loss(other(x), y).backward()
        b.step()
        b.zero_grad()
        if i % 4 == 3:
            a.step()
            a.zero_grad()
            moves.step()

fit(Own(), Own(), [(torch.randn(5, 6), torch.randn(5, 3)) for _ in range(8)])
"""


@pytest.mark.parametrize(
    ("each", "scaled", "expected"),
    [
        ("pass", " / 4", []),
        ("pass", "", ["GA101"]),
        ("a.zero_grad()", " / 4", ["GA201"]),
        # What the other network's optimizer clears is the other's.
        ("b.zero_grad()", " / 4", []),
    ],
)
def test_an_optimizer_that_a_network_makes_has_its_parameters(each: str, scaled: str, expected: list[str]) -> None:
    source = MAKES_ITS_OWN.format(each=each, scaled=scaled)
    assert codes_in(source) == expected


OWN_NETWORK = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, settings, steps=4):
        super().__init__()
        self.settings, self.steps = settings, steps
        self.body = nn.Linear(6, 3)
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        self.seen = 0

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self(x), y) / {inside}

    def learn(self, batch):
        self.training_step(batch).backward()
        self.seen += 1
        if self.seen % self.steps == 0:
            self.optimizer.step()
            {cleared}

net = Net({{"steps": 4}})
for batch in torch.utils.data.DataLoader(load(), batch_size=5, drop_last=True):
    {turn}
"""
OUTSIDE = """(net.training_step(batch) / {outside}).backward()
    net.seen += 1
    if net.seen % net.steps == 0:
        net.optimizer.step()
        net.optimizer.zero_grad()"""


@pytest.mark.parametrize(
    ("inside", "outside", "expected"),
    [
        ('self.settings["steps"]', "1", []),
        ("1", "net.steps", []),
        ('self.settings["steps"]', "net.steps", ["GA102"]),
        ("1", "1", ["GA101"]),
        ("self.settings.unknown", "net.steps", []),
    ],
)
def test_what_a_networks_own_method_divides_by_is_known(inside: str, outside: str, expected: list[str]) -> None:
    """Without the method that trains, which is read by itself."""
    turn = OUTSIDE.format(outside=outside)
    source = OWN_NETWORK.format(inside=inside, cleared="pass", turn=turn)
    before, _, rest = source.partition("    def learn(self, batch):")
    source = before + rest.partition("pass\n\n")[2]
    assert [code for code in codes_in(source) if code != "GA301"] == expected


@pytest.mark.parametrize(
    ("inside", "cleared", "expected"),
    [
        ("self.steps", "self.optimizer.zero_grad()", []),
        ("1", "self.optimizer.zero_grad()", ["GA101"]),
        ("self.steps", "pass", ["GA203"]),
    ],
)
def test_a_network_may_train_itself(inside: str, cleared: str, expected: list[str]) -> None:
    source = OWN_NETWORK.format(inside=inside, cleared=cleared, turn="net.learn(batch)")
    assert [code for code in codes_in(source) if code != "GA301"] == expected


RUNNER = """\
import torch
import torch.nn.functional as F

class Runner{base}:
    def __init__(self, network, optimizer, steps):
        {made}
        self.network, self.optimizer, self.steps = network, optimizer, steps

    def forward(self, x, y):
        return F.cross_entropy(self.network(x), y)

    def backward(self, loss):
        (loss / self.steps).backward()

    def step(self):
        self.optimizer.step()
        {clears}

def run_epoch(runner, loader, steps):
    for i, (x, y) in enumerate(loader):
        runner.backward(runner.forward(x, y))
        if (i + 1) % steps == 0{ends}:
            runner.step()

def main(network, loader, accumulation_steps):
    optimizer = torch.optim.AdamW(network.parameters())
    runner = Runner(network, optimizer, accumulation_steps)
    for epoch in range(10):
        run_epoch(runner, loader, accumulation_steps)
"""


@pytest.mark.parametrize(
    ("clears", "ends", "found"),
    [
        ("pass", "", ["GA203", "GA301"]),
        ("self.network.zero_grad()", "", ["GA301"]),
        ("self.network.zero_grad()", " or i + 1 == len(loader)", ["GA103"]),
    ],
)
@pytest.mark.parametrize("base", ["", "(object)"])
def test_an_object_whose_class_derives_from_nothing_is_no_network(
    base: str, clears: str, ends: str, found: list[str]
) -> None:
    source = RUNNER.format(base=base, made="pass", clears=clears, ends=ends)
    assert sorted(codes_in(source)) == found
