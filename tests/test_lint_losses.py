"""lint on losses that are written by hand: undivided means are reported, what may be no mean is not."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

LOOP = """\
import torch.nn.functional as F

def train(model, batches, optimizer, accumulation_steps=4):
    for step in range(100):
        optimizer.zero_grad()
        for _ in range(accumulation_steps):
            x, t = next(batches)
            out = model(x)
            loss = {loss}{scale}
            loss.backward()
        optimizer.step()
"""

MEANS = [
    "F.mse_loss(out, t)",
    "((out - t) ** 2).mean()",
    "((out - t) ** 2).sum(1).mean()",
    "((out - t) ** 2).mean(1).mean()",
    "((out - t) ** 2).sum() / x.size(0)",
    "(out - t).pow(2).mean()",
    "(out - t).abs().mean() + 0.1 * (out ** 2).mean()",
    # what is averaged may be a product
    "(torch.exp(out - out.detach()) * advantages(t)).mean()",
    "(out * torch.log_softmax(out, -1)).sum(-1).mean()",
    "((out * t.float()).sum(dim=1) / t.float().sum(dim=1).clamp(min=1)).mean()",
    "(torch.log_softmax(out, -1) * t).mean(1).mean(0)",
]

NO_MEANS_FOR_SURE = [
    "((out - t) ** 2).sum()",
    "((out - t) ** 2).sum() / normaliser(t)",
    "F.mse_loss(out, t) ** 2",
    "F.mse_loss(out, t) * torch.exp(out).mean()",
    "(torch.log_softmax(out, -1) * t).mean() * weights(t)",
    "(torch.log_softmax(out, -1) / counted_over_the_window).mean()",
    "2 ** F.mse_loss(out, t)",
    "(F.mse_loss(out, t) / accumulation_steps) ** 2",
]


def codes(loss: str, scale: str = "") -> list[str]:
    return codes_in(LOOP.format(loss=loss, scale=scale))


@pytest.mark.parametrize("loss", MEANS)
def test_a_mean_that_is_not_divided_is_found(loss: str) -> None:
    assert codes(loss) == ["GA101"]
    assert codes(f"({loss})", " / accumulation_steps") == []


@pytest.mark.parametrize("loss", NO_MEANS_FOR_SURE)
def test_what_may_be_no_mean_is_no_finding(loss: str) -> None:
    assert codes(loss) == []


COUNTED = """\
import torch

def train(model, loader, optimizer, accumulation_steps=4):
    batches = iter(loader)
    for step in range(len(loader) // accumulation_steps):
        window = []
        for _ in range(accumulation_steps):
            window.append(next(batches))
        count = {count}
        for batch in window:
            loss = model(batch["ids"], batch["labels"], {given})
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "count",
    [
        'sum(b["labels"].ne(-100).sum() for b in window)',
        'sum([(b["labels"] != -100).sum() for b in window])',
        'sum(b["labels"][:, 1:].ne(-100).count_nonzero() for b in window)',
        'sum(torch.sum(b["labels"]) for b in window)',
    ],
)
def test_a_model_that_is_handed_the_number_of_tokens_may_divide_by_it(count: str) -> None:
    assert codes_in(COUNTED.format(count=count, given="count")) == []


@pytest.mark.parametrize("other", ["batch['mask']", "batch['mask'].sum(1)"])
def test_a_model_that_is_handed_more_data_divides_by_none(other: str) -> None:
    assert codes_in(COUNTED.format(count=len("window"), given=other)) == ["GA101"]


WINDOW = """\
import torch

def train(model, loader, optimizer, every, epochs):
    for _ in range(epochs):
        source = iter(loader)
        for _ in range(len(loader) // every):
            window = [next(source) for _ in range(every)]
            count = {window}
            for batch in window:
                count_here = {batch}
                loss = model(batch["x"], labels=batch["y"], count={given}).loss
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
"""
OF_THE_WINDOW = [
    "torch.stack([torch.count_nonzero(batch['y'][..., 1:] != -100) for batch in window]).sum()",
    "torch.cat([batch['y'] for batch in window]).ne(-100).sum()",
    "sum((batch['y'] != -100).sum() for batch in window)",
    "torch.stack([batch['y'] for batch in window]).sum().to(model.device)",
]


@pytest.mark.parametrize("count", OF_THE_WINDOW)
def test_what_is_counted_over_the_window_may_be_what_the_model_divides_by(count: str) -> None:
    found = lint_source(WINDOW.format(window=count, batch="0", given="count"), "train.py")
    assert [finding.mistake.code for finding in found] == []


@pytest.mark.parametrize("count", OF_THE_WINDOW)
def test_what_is_counted_of_one_batch_is_no_division_by_the_window(count: str) -> None:
    own = WINDOW.format(window=count, batch="batch['y'].ne(-100)", given="count_here")
    assert codes_in(own) == ["GA101"]


RATED = """\
import torch
from detectors import Detector

def train(args, batches, batch_size, subdivisions):
    rate = {rate}
    model = Detector(args.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for _ in range(100):
        optimizer.zero_grad()
        for _ in range(subdivisions):
            x, t = next(batches)
            loss = {loss}
            loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    "rate",
    [
        "args.lr / batch_size / subdivisions",
        "args.lr / batch_size",
        "args.lr / subdivisions",
        "args.lr / (batch_size * subdivisions)",
        "args.warm * (args.lr / batch_size)",
    ],
)
def test_a_rate_that_is_divided_by_what_a_sum_grows_with_may_be_there_for_one(rate: str) -> None:
    own = lint_source(RATED.format(rate=rate, loss="model(x, t)"), "train.py")
    assert [finding.mistake.code for finding in own] == []
    mean = lint_source(RATED.format(rate=rate, loss="torch.nn.functional.mse_loss(model(x), t)"), "train.py")
    assert [finding.mistake.code for finding in mean] == ["GA101"]


@pytest.mark.parametrize("rate", ["args.lr", "args.lr * batch_size", "args.lr / args.decay", "args.lr * subdivisions"])
def test_a_rate_that_is_not_says_nothing_of_the_loss(rate: str) -> None:
    found = lint_source(RATED.format(rate=rate, loss="model(x, t)"), "train.py")
    assert [finding.mistake.code for finding in found] == ["GA101"]


OF_ITS_OWN = """\
import torch
from torch import nn

class Smoothed(nn.Module):
    def __init__(self):
        super().__init__()
        self.criterion = nn.KLDivLoss(reduction="{reduction}")

    def forward(self, x, target):
        return self.criterion(x, target)

class Pairs:
    def __init__(self, source, target):
        self.source, self.target = source, target
        self.tokens = (target != 0).sum()

def train(model, data, optimizer, normaliser, K=4):
    criterion = Smoothed()
    loader = torch.utils.data.DataLoader(data, batch_size=32)
    for i, batch in enumerate(Pairs(b[0], b[1]) for b in loader):
        loss = criterion(model(batch.source), batch.target){division}
        loss.backward()
        if (i + 1) % K == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""


def of_its_own(division: str, reduction: str = "sum") -> list[str]:
    found = lint_source(OF_ITS_OWN.format(division=division, reduction=reduction), "train.py")
    return [finding.mistake.code for finding in found]


@pytest.mark.parametrize("division", [" / batch.tokens", " / (batch.target != 0).sum()", " / (batch.tokens + 1e-6)"])
def test_a_class_that_sums_gives_a_mean_where_its_units_divide_it(division: str) -> None:
    assert of_its_own(division) == ["GA101"]
    assert of_its_own(f"{division} / K") == ["GA104", "GA103"]


@pytest.mark.parametrize("division", ["", " / normaliser", " / K", " / batch.source"])
def test_a_class_that_sums_may_give_a_sum_elsewhere(division: str) -> None:
    assert "GA101" not in of_its_own(division)


def test_a_class_that_averages_is_divided_again_by_a_count() -> None:
    assert "GA101" not in of_its_own(" / batch.tokens", reduction="mean")


OF_OUTPUTS = """\
def train(model, loader, optimizer, K=4):
    for i, batch in enumerate(loader):
        outputs = model(**batch)
        {put}
        {loss}.backward()
        if (i + 1) % K == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize("loss", ["outputs.loss", 'outputs["loss"]'])
@pytest.mark.parametrize(
    ("put", "codes"),
    [
        ("{loss} = {loss} / K", ["GA103"]),
        ("{loss} = {loss}.div(K)", ["GA103"]),
        ("{loss} /= K", ["GA103"]),
        ("{loss} = {loss}.mean()", ["GA101"]),
        ("{loss} = {loss} / K / K", ["GA102"]),
        ("other = {loss} / K", ["GA101"]),
    ],
)
def test_a_loss_that_is_put_back_into_the_outputs_it_came_of(loss: str, put: str, codes: list[str]) -> None:
    source = OF_OUTPUTS.format(loss=loss, put=put.format(loss=loss))
    assert set(codes) <= set(codes_in(source, "GA10"))
    assert "GA101" in codes or "GA101" not in codes_in(source)


BY_A_NETWORK = """\
import torch
from torch import nn

class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = nn.Linear(5, 3)

    def logs(self, x):
        return self.rates(x).clamp(max=5)

    def {name}(self, x, seen):
        logs = self.logs(x)
        each = logs.exp() - seen * logs
        return {reduced}

def train(batches, K=3):
    counts = Counts()
    optimizer = torch.optim.SGD(counts.parameters(), lr=1e-3)
    for n, (x, seen) in enumerate(batches, 1):
        counts{called}(x, seen).backward()
        if n % K == 0 or n == len(batches):
            optimizer.step()
            optimizer.zero_grad()
"""
NAMES = [("forward", ""), ("distance", ".distance")]


def of_a_network(name: str, called: str, reduced: str) -> list[str]:
    return codes_in(BY_A_NETWORK.format(name=name, called=called, reduced=reduced))


@pytest.mark.parametrize(("name", "called"), NAMES)
@pytest.mark.parametrize("reduced", ["each.sum()", "torch.sum(each)", "-each.neg().sum()"])
def test_what_a_network_adds_up_to_one_number_is_no_mean(name: str, called: str, reduced: str) -> None:
    assert of_a_network(name, called, reduced) == []


@pytest.mark.parametrize(("name", "called"), NAMES)
@pytest.mark.parametrize("reduced", ["each.mean()", "each.sum(1).mean()", "each.sum() / len(x)"])
def test_what_a_network_averages_is_a_mean(name: str, called: str, reduced: str) -> None:
    assert of_a_network(name, called, reduced) == ["GA101"]


OUTPUTS = """\
def train(model, loader, optimizer, K):
    for i, batch in enumerate(loader):
        outputs = model(**batch)
        (outputs.loss{scale}).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        # Whoever divides what a model gives by the size of the batch may be given a sum.
        (" / K / batch['input_values'].shape[0]", []),
        (" / len(batch['input_values']) / K", []),
        (" / K", []),
        (" / K / K", ["GA102"]),
        ("", ["GA101"]),
    ],
)
def test_the_loss_of_a_models_output_may_be_a_sum(scale: str, expected: list[str]) -> None:
    found = codes_in(OUTPUTS.format(scale=scale))
    assert [code for code in found if code != "GA301"] == expected


GIVEN_A_COUNT = """\
from torch import nn

class Criterion(nn.Module):
    def forward(self, outputs, targets, count):
        return match(outputs, targets).sum() / count

criterion, MICRO, K = Criterion(), 4, 3
for start in range(0, len(records), MICRO * K):
    window = records[start:start + MICRO * K]
    boxes = float(sum(len(target) for _, target in window))
    for i in range(0, len(window), MICRO):
        images, targets = zip(*window[i:i + MICRO])
        criterion(model(torch.stack(images)), targets{count}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("count", "expected"), [(", boxes", []), ("", ["GA101"]), (", 5", ["GA101"])])
def test_a_loss_that_is_given_the_units_of_all_micro_batches(count: str, expected: list[str]) -> None:
    """What a criterion is given of the whole window it may divide by."""
    source = "import torch\nmodel, optimizer, records = make()\n" + GIVEN_A_COUNT.format(count=count)
    assert codes_in(source) == expected


RUNNING = """\
import torch

def train(model, loader, optimizer):
    total = 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += {added}
    return total
"""


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ("loss.item() if hasattr(loss, 'item') else loss", []),
        ("loss if hasattr(loss, 'detach') else 0", ["GA801"]),
        ("loss", ["GA801"]),
    ],
)
def test_a_tensor_has_the_methods_of_tensors(added: str, expected: list[str]) -> None:
    assert codes_in(RUNNING.format(added=added)) == expected


DIVERGENCE = """\
import torch.nn.functional as F

def train(model, teacher, loader, optimizer, K):
    rows = 0
    for i, x in enumerate(loader):
        F.kl_div(model(x).log_softmax(-1), teacher(x).softmax(-1), reduction={reduction!r}).backward()
        rows += len(x)
        if (i + 1) % K == 0:
            for p in model.parameters():
                p.grad.div_(rows)
            optimizer.step()
            optimizer.zero_grad()
            rows = 0
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("reduction", "expected"), [("sum", []), ("batchmean", ["GA102"])])
def test_a_divergence_is_reduced_as_it_is_asked_for(reduction: str, expected: list[str]) -> None:
    """A window's sum over its rows is their mean; a mean of each batch is divided by its rows already."""
    found = codes_in(DIVERGENCE.format(reduction=reduction))
    assert [code for code in found if code != "GA301"] == expected


OF_EITHER_KIND = """\
from collections.abc import Mapping
from torch import Tensor

def train(model, criterion, batches, optimizer, K):
    for n, (x, t) in enumerate(batches):
        found = criterion(model(x), t)
        if isinstance(found, Mapping):
            loss = found["sum"]
        elif isinstance(found, {kind}):
            loss = found
        else:
            print("no loss")
        (loss{scale}).backward()
        if (n + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_loss_that_is_asked_whether_it_is_a_tensor_is_one() -> None:
    assert codes_in(OF_EITHER_KIND.format(kind="Tensor", scale=""), "GA10") == ["GA101"]
    assert codes_in(OF_EITHER_KIND.format(kind="Tensor", scale=" / K"), "GA10") == []
    assert codes_in(OF_EITHER_KIND.format(kind="Record", scale=""), "GA10") == []


def test_what_a_simulation_adds_up_in_each_of_its_steps_is_no_sum_of_losses() -> None:
    """Each state is computed of several parts of the one before: their terms would double at every step."""
    source = """
import torch

rates = torch.nn.Parameter(torch.zeros(2))
optimizer = torch.optim.Adam([rates], lr=0.1)
start, seen = torch.eye(3), torch.rand(30, 3, 3)


def simulate(log_rates, state):
    one, two = log_rates.exp()
    states = []
    for _ in range(30):
        def slope(s):
            a, b, c = s.unbind(-1)
            return torch.stack([-one * a, one * a - two * b, two * b], -1)
        first = slope(state)
        state = state + 0.05 * (first + slope(state + 0.1 * first))
        states.append(state)
    return torch.stack(states)


for _ in range(8):
    optimizer.zero_grad()
    ((simulate(rates, start) - seen) ** 2).mean().backward()
    optimizer.step()
"""
    assert lint_source(source, "train.py") == []
