"""Micro-batches of one sample each: sets, graphs and bags with one target, whose rows depend on each other.

A large batch of such samples is the mean of their losses, which cannot be computed from joined rows. The gradients are
in float64, and each window's is compared here with the mean over its samples, computed from all samples at once.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult

SETS = """
import torch
from torch import nn
F = nn.functional
torch.manual_seed(4)
torch.set_default_dtype(torch.float64)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.each, self.head = nn.Sequential(nn.Linear(3, 7), {norm}, nn.Tanh()), nn.Linear(7, {outputs})
    def forward(self, x):
        return self.head(self.each(x).mean(-2, keepdim=True))
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sizes = {sizes}
sets = [(torch.randn(n, {shape}), {target}) for n in sizes]
def all_at_once(window):
    {all_at_once}
for start in range(0, 12, 4):
    window = sets[start:start + 4]
    expected = torch.autograd.grad(all_at_once(window), [*model.parameters()]) if {checked} else None
    for x, y in window:
        ({loss}{scale}).backward()
    if expected is not None:
        torch.testing.assert_close([p.grad for p in model.parameters()], list(expected))
    optimizer.step()
    optimizer.zero_grad()
"""
EQUAL, UNEQUAL = "[5] * 12", "[3, 5, 4, 6, 3, 4, 5, 3, 6, 4, 5, 3]"
CLASSES = {
    "outputs": 2,
    "target": "torch.randint(0, 2, (1,))",
    "loss": "F.cross_entropy(model(x), y)",
    "all_at_once": "xs, ys = zip(*window); return F.cross_entropy(torch.cat([*map(model, xs)]), torch.cat(ys))",
}
NUMBERS = {
    "outputs": 1,
    "target": "torch.randn(1, 1)",
    "loss": "F.mse_loss(model(x), y)",
    "all_at_once": "return sum((model(x) - y).square().sum() for x, y in window) / len(window)",
}


def watched(folder: Path, **parts: object) -> VerifyResult:
    given = {"norm": "nn.Identity()", "shape": "3", "scale": " / 4", "sizes": UNEQUAL, "checked": False, **parts}
    return watch_source(SETS.format(**given), folder)


def codes(result: VerifyResult) -> list[str]:
    return [d.mistake.code for d in result.diagnosis]


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("kind", [CLASSES, NUMBERS], ids=["classes", "numbers"])
def test_a_set_with_one_target_is_one_sample(kind: dict[str, object], sizes: str, tmp_path: Path) -> None:
    right = watched(tmp_path, **kind, sizes=sizes, checked=True)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    assert any("each micro-batch is one sample" in note for note in right.notes)
    wrong = watched(tmp_path, **kind, sizes=sizes, scale="")
    assert (wrong.verdict, codes(wrong)) == (Verdict.DEVIATES, ["GA101"]), wrong.reason
    assert [w.grad_norm_ratio for w in wrong.windows] == pytest.approx([4.0] * 3)


def test_targets_that_are_equal_in_some_windows_are_those_of_samples_too(tmp_path: Path) -> None:
    source = SETS.replace("for n in sizes]", "for i, n in enumerate(sizes)]")
    parts = {**CLASSES, "target": "torch.tensor([i % 2 if 4 <= i < 8 else 1])", "shape": "3"}
    parts.update(norm="nn.Identity()", scale=" / 4", sizes=EQUAL, checked=True)
    result = watch_source(source.format(**parts), tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


def test_layers_that_normalize_over_the_batch_couple_its_rows_all_the_same(tmp_path: Path) -> None:
    result = watched(tmp_path, **CLASSES, norm="nn.BatchNorm1d(7)")
    assert (result.verdict, codes(result)) == (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, ["GA901"]), result.reason


@pytest.mark.parametrize("shape", ["3", "n + 1, 3"], ids=["joined", "of different shapes"])
def test_the_mean_of_a_batch_compared_with_the_mean_of_its_targets_couples_its_samples(
    shape: str, tmp_path: Path
) -> None:
    """One row is reduced here too, but its target was computed from those of several samples."""
    loss = (
        "F.mse_loss(model(x)"
        + (".mean(1)" if "," in shape else "")
        + ".mean(0, keepdim=True), y.mean(0, keepdim=True))"
    )
    parts = {**NUMBERS, "target": "torch.randn(n, 1)", "loss": loss, "shape": shape, "sizes": "[5, 6, 7, 8] * 3"}
    source = SETS.replace(".mean(-2, keepdim=True)", "")
    given = {"norm": "nn.Identity()", "scale": " / 4", "checked": False, **parts}
    result = watch_source(source.format(**given), tmp_path)
    assert (result.verdict, codes(result)) == (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, ["GA901"]), result.reason


@pytest.mark.parametrize("target", ["torch.zeros(1, 1)", "zero"])
def test_a_constant_is_no_target_of_one_sample(target: str, tmp_path: Path) -> None:
    """The mean of a batch's outputs is pulled to zero, whatever its targets are."""
    loss = f"F.mse_loss(model(x).mean(0, keepdim=True), {target})"
    source = SETS.replace(".mean(-2, keepdim=True)", "").replace("sizes =", "zero = torch.zeros(1, 1)\nsizes =")
    parts = {**NUMBERS, "loss": loss, "norm": "nn.Identity()", "scale": " / 4", "checked": False, "shape": "3"}
    result = watch_source(source.format(**parts, sizes=EQUAL), tmp_path)
    assert result.verdict in (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, Verdict.INCONCLUSIVE), result.reason


BAGS = """
import torch
from torch import nn
F = nn.functional
torch.manual_seed(6)
torch.set_default_dtype(torch.float64)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.each, self.weight, self.head = nn.Linear(4, 6), nn.Linear(6, 1), nn.Linear(6, 2)
        self.drop, self.before = nn.Dropout(0.2), torch.zeros(2)
    def forward(self, bag):
        {body}
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
bags = [(torch.randn(1, n, 4), torch.tensor([i % 2])) for i, n in enumerate({sizes})]
for i, (bag, label) in enumerate(bags):
    (F.cross_entropy(model(bag), label) / 3).backward()
    if i % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
"""
ATTENTION = """parts = self.drop(torch.tanh(self.each(bag.squeeze(0))))
        share = self.weight(parts).softmax(0)
        return self.head((share * parts).sum(0, keepdim=True))"""
KEEPS_STATE = (
    ATTENTION.replace("return ", "found = ")
    + """
        found = found + self.before
        self.before = 0.5 * found.detach()[0]
        return found"""
)
COUPLES_BATCH = """found = self.head(torch.tanh(self.each(bag)).mean(1))
        return found - 0.5 * found.mean(0)"""


@pytest.mark.parametrize("sizes", ["[5] * 6", "[5, 3, 6, 4, 7, 5]"], ids=["equal", "unequal"])
@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        (ATTENTION, Verdict.EQUIVALENT),
        # What one bag gives depends on those before it.
        (KEEPS_STATE, Verdict.INCONCLUSIVE),
        # This model takes several bags at once, and mixes them.
        (COUPLES_BATCH, Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION),
    ],
    ids=["attention", "state", "coupled"],
)
def test_a_bag_at_a_time(body: str, sizes: str, verdict: Verdict, tmp_path: Path) -> None:
    result = watch_source(BAGS.format(body=body, sizes=sizes), tmp_path)
    assert result.verdict is verdict, result.reason


MEAN_OF_MEAN = """
import torch
from torch import nn
torch.manual_seed(1)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for window in range(2):
    for rows in (5, 3):
        x, y = torch.randn(rows, 4), torch.randint(0, 3, (rows,))
        (nn.functional.cross_entropy(model(x), y).mean() / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_mean_of_a_mean_counts_the_rows_of_the_latter(tmp_path: Path) -> None:
    result = watch_source(MEAN_OF_MEAN, tmp_path)
    assert (result.verdict, codes(result)) == (Verdict.DEVIATES, ["GA104"]), result.reason
    # Of 8 rows, 5 should count 5/8 and 3 should count 3/8.
    assert result.windows[0].weights == pytest.approx((0.8, 4 / 3))


NUMBERS_ALONE = """
import torch
from torch import nn
torch.manual_seed(8)
torch.set_default_dtype(torch.float64)
each, head = nn.Linear(3, 5), nn.Linear(5, 1)
weights = [*each.parameters(), *head.parameters()]
optimizer = torch.optim.SGD(weights, lr=0.1)
def score(x):
    return head(torch.tanh(each(x)).mean(0))[0]
def loss_of(x, y):
    {loss}
sizes = {sizes}
rows = [torch.randn(n, 3) for n in sizes]
{targets}
for epoch in range(2):
    for start in range(0, 12, 3):
        window = [*zip(rows, targets)][start:start + 3]
        if {checked}:
            mean = torch.stack([loss_of(x, y) for x, y in window]).mean()
            expected = torch.autograd.grad(mean, weights)
        for x, y in {ahead}:
            (loss_of(x, y){scale}).backward()
        if {checked}:
            torch.testing.assert_close([w.grad for w in weights], list(expected))
        optimizer.step()
        optimizer.zero_grad()
"""
GIVEN, SIGNS = "targets = [*torch.randn(12)]", "targets = [torch.tensor(1.0 if x.amax() > 1.4 else -1.0) for x in rows]"
LABELLED_AHEAD = "targets = [x.amax() + len(x) for x in rows]"
"""Data that was made by a script is often labelled so, before the training."""
SQUARED = "return (score(x) - y) ** 2"


def numbers(folder: Path, loss: str, **parts: object) -> VerifyResult:
    given = {"scale": " / 3", "sizes": UNEQUAL, "checked": False, "ahead": "window", "targets": GIVEN, **parts}
    return watch_source(NUMBERS_ALONE.format(loss=loss, **given), folder)


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (SQUARED, GIVEN),
        (SQUARED, LABELLED_AHEAD),
        ("gap = y - score(x); return gap * gap", GIVEN),
        ("return torch.log1p(torch.exp(-y * score(x)))", SIGNS),
        ("return nn.functional.mse_loss(score(x), y)", LABELLED_AHEAD),
    ],
    ids=["squared", "labelled ahead", "product", "logistic", "built in"],
)
def test_a_loss_of_one_number_and_its_target_is_that_of_one_sample(
    loss: str, targets: str, sizes: str, tmp_path: Path
) -> None:
    right = numbers(tmp_path, loss, targets=targets, sizes=sizes, checked=True)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    wrong = numbers(tmp_path, loss, targets=targets, sizes=sizes, scale="")
    assert wrong.verdict is Verdict.DEVIATES, wrong.reason
    assert [w.grad_norm_ratio for w in wrong.windows] == pytest.approx([3.0] * 8)


OF_ROWS = "targets = [torch.randn(n) for n in sizes]"


@pytest.mark.parametrize(
    ("loss", "parts"),
    [
        # Of the root of a mean over rows, each of which has a target.
        ("return (each(x)[:, 0] - y).square().mean().sqrt()", {}),
        # The mean of a batch is compared with that of its targets, computed in its turn, or when its window was loaded.
        ("return (each(x).mean() - y.mean()) ** 2", {}),
        ("return (each(x).mean() - y) ** 2", {"ahead": "[(x, y.mean()) for x, y in window]"}),
        # What weighs a micro-batch's loss is no target.
        ("return y * (each(x).mean() - 0.5) ** 2", {"targets": GIVEN}),
    ],
    ids=["root of a mean", "means", "means ahead", "weight"],
)
def test_a_number_that_was_computed_of_several_rows_is_no_samples(
    loss: str, parts: dict[str, object], tmp_path: Path
) -> None:
    result = numbers(tmp_path, loss, **{"targets": OF_ROWS, **parts})
    assert result.verdict in (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, Verdict.INCONCLUSIVE), result.reason


@pytest.mark.parametrize(
    ("targets", "sizes", "verdict"),
    [
        # Computed before the run, too, it may be the mean of the targets of as many rows; unless it is of the rows.
        ("targets = [y.mean() for y in torch.randn(sum(sizes)).split(sizes)]", EQUAL, Verdict.INCONCLUSIVE),
        ("targets = [y.mean() for y in torch.randn(12, sizes[0])]", EQUAL, Verdict.INCONCLUSIVE),
        ("targets = [x.mean() for x in rows]", EQUAL, Verdict.EQUIVALENT),
        ("targets = [torch.tanh(x)[:, 0].mean() for x in rows]", EQUAL, Verdict.EQUIVALENT),
        # Batches have equally many rows, and sets may not.
        ("targets = [y.mean() for y in torch.randn(sum(sizes)).split(sizes)]", UNEQUAL, Verdict.EQUIVALENT),
        # Of other rows than those of the micro-batch.
        ("targets = [y.mean() for y in torch.randn(12, 9)]", EQUAL, Verdict.EQUIVALENT),
    ],
    ids=["of rows", "of items", "of its own rows", "computed of them", "of unequal numbers", "of another number"],
)
def test_a_number_that_was_reduced_before_the_run(targets: str, sizes: str, verdict: Verdict, tmp_path: Path) -> None:
    result = numbers(tmp_path, SQUARED, targets=targets, sizes=sizes)
    assert result.verdict is verdict, result.reason


SEQUENCES = """
import torch
from torch import nn
F = nn.functional
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.out = {layer}, {head}
    def forward(self, x):
        mixed = self.mix({given})
        return self.out(mixed[0] if isinstance(mixed, tuple) else mixed)
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sequences = [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in {sizes}]
for start in range(0, 12, 4):
    window = sequences[start:start + 4]
    steps = sum(len(y) for _, y in window)
    total = sum(F.cross_entropy(model(x), y, reduction="sum") for x, y in window) / steps
    expected = torch.autograd.grad(total, [*model.parameters()])
    for x, y in window:
        ({loss}).backward()
    if {checked}:
        torch.testing.assert_close([p.grad for p in model.parameters()], list(expected))
    optimizer.step()
    optimizer.zero_grad()
"""
SUM, SHARE = 'F.cross_entropy(model(x), y, reduction="sum") / steps', "F.cross_entropy(model(x), y) * len(y) / steps"
RECURRENT = {"layer": "nn.GRU(4, 6)", "head": "nn.Linear(6, 3)", "given": "x"}
ATTENTIVE = {"layer": "nn.TransformerEncoderLayer(4, 2, 8, 0.0)", "head": "nn.Linear(4, 3)", "given": "x"}


def tagged(folder: Path, **parts: object) -> VerifyResult:
    given = {**RECURRENT, "sizes": UNEQUAL, "loss": SUM, "checked": False, **parts}
    return watch_source(SEQUENCES.format(**given), folder)


@pytest.mark.parametrize("loss", [SUM, SHARE], ids=["sum", "share"])
@pytest.mark.parametrize("layer", [RECURRENT, ATTENTIVE], ids=["recurrent", "attention"])
def test_what_a_layer_takes_without_a_dimension_for_samples_is_one(
    layer: dict[str, object], loss: str, tmp_path: Path
) -> None:
    right = tagged(tmp_path, **layer, loss=loss, checked=True)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    wrong = tagged(tmp_path, **layer, loss=loss.replace("steps", "len(y)"))
    assert wrong.verdict is Verdict.DEVIATES, wrong.reason


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        # Samples that a layer takes for the steps of one sequence are as many in each micro-batch.
        ({"sizes": EQUAL}, Verdict.INCONCLUSIVE),
        # With a dimension for samples, the rows before and after it are what the loop makes of them.
        ({"given": "x[:, None]", "head": "nn.Sequential(nn.Flatten(), nn.Linear(6, 3))"}, Verdict.INCONCLUSIVE),
        (
            {"head": "nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))"},
            Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION,
        ),
    ],
    ids=["as many rows", "with the dimension", "normalized"],
)
def test_rows_that_may_be_samples(parts: dict[str, object], verdict: Verdict, tmp_path: Path) -> None:
    result = tagged(tmp_path, **parts)
    assert result.verdict is verdict, result.reason


@pytest.mark.parametrize("layer", [RECURRENT, ATTENTIVE], ids=["recurrent", "attention"])
@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ("zip(torch.randn(sum(sizes), 4).split(sizes), labels)", Verdict.INCONCLUSIVE),
        (
            "torch.utils.data.DataLoader(list(zip(torch.randn(sum(sizes), 4), torch.cat(labels))), "
            "batch_sampler=torch.arange(sum(sizes)).split(sizes))",
            Verdict.INCONCLUSIVE,
        ),
        ("[(padded[:n], y) for padded, n, y in zip(torch.randn(12, 9, 4), sizes, labels)]", Verdict.EQUIVALENT),
        (
            "torch.utils.data.DataLoader([(torch.randn(len(y), 4), y) for y in labels], batch_size=None)",
            Verdict.EQUIVALENT,
        ),
    ],
    ids=["rows of a table", "stacked by a loader", "cut from padded ones", "one each from a loader"],
)
def test_where_the_rows_of_a_sequence_come_from(
    given: str, verdict: Verdict, layer: dict[str, object], tmp_path: Path
) -> None:
    source = SEQUENCES.format(**layer, sizes=UNEQUAL, loss=SUM, checked=False)
    line = next(line for line in source.splitlines() if line.startswith("sequences ="))
    made = f"sizes = {UNEQUAL}\nlabels = [torch.randint(0, 3, (n,)) for n in sizes]\nsequences = list({given})"
    result = watch_source(source.replace(line, made), tmp_path)
    assert result.verdict is verdict, result.reason


def test_a_layer_that_takes_several_samples_in_turn_takes_no_single_one(tmp_path: Path) -> None:
    """Each micro-batch is a list of sequences, whose results are compared with each other."""
    source = """
import torch
from torch import nn
torch.manual_seed(3)
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.GRU(4, 5)
    def forward(self, several):
        found = torch.stack([self.mix(one)[1][-1] for one in several])
        return found @ found.T
model = Encoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [[torch.randn(n, 4) for n in range(3, 3 + rows)] for rows in (3, 5, 4, 6, 3, 5, 4, 6)]
for start in (0, 4):
    window = batches[start:start + 4]
    rows = sum(map(len, window))
    for several in window:
        target = torch.arange(len(several))
        (nn.functional.cross_entropy(model(several), target, reduction="sum") / rows).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    result = watch_source(source, tmp_path)
    assert (result.verdict, codes(result)) == (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, ["GA901"]), result.reason


MOLECULES = """
import torch
from torch import nn
torch.manual_seed(6)
torch.set_default_dtype(torch.float64)
class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.of_pair = nn.Sequential(nn.Linear(1, 6), {norm}, nn.Tanh(), nn.Linear(6, 1))
    def forward(self, atoms):
        first, second = torch.triu_indices(len(atoms), len(atoms), offset=1)
        return self.of_pair((atoms[first] - atoms[second]).norm(dim=1, keepdim=True)).sum()
model = Energy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
molecules = [(torch.randn(n, 3), torch.randn(()), torch.randn(n, 3)) for n in {sizes}]
def loss_of(atoms, energy, forces):
    atoms = atoms.clone().requires_grad_()
    found = model(atoms)
    pulls = -torch.autograd.grad(found, atoms, create_graph=True)[0]
    return {loss}
for start in range(0, 12, 4):
    window = molecules[start:start + 4]
    for molecule in window:
        (loss_of(*molecule){scale}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ENERGY_AND_FORCES = "(found - energy) ** 2 + 2 * (pulls - forces).square().mean()"
MADE_IN_TURN = "(found - forces.norm(dim=1).sum()) ** 2 + 2 * (pulls - forces).square().mean()"


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        pytest.param({}, Verdict.EQUIVALENT, id="right"),
        pytest.param({"scale": ""}, Verdict.DEVIATES, id="undivided"),
        pytest.param({"sizes": UNEQUAL}, Verdict.DEVIATES, id="means-of-unlike-lengths"),
        pytest.param({"norm": "nn.BatchNorm1d(6)"}, Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, id="normalized"),
        # The number of a batch, reduced from its rows in its own turn, is no molecule's.
        pytest.param({"loss": MADE_IN_TURN}, Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, id="reduced-in-turn"),
        # Nothing has a target of its own here but the rows, which may be atoms or samples.
        pytest.param({"loss": "(pulls - forces).square().mean()"}, Verdict.INCONCLUSIVE, id="forces-alone"),
    ],
)
def test_derivatives_of_a_samples_number_are_its_own(
    parts: dict[str, object], verdict: Verdict, tmp_path: Path
) -> None:
    given = {"norm": "nn.Identity()", "sizes": EQUAL, "loss": ENERGY_AND_FORCES, "scale": " / 4", **parts}
    result = watch_source(MOLECULES.format(**given), tmp_path)
    assert result.verdict is verdict


def test_rows_in_unlike_numbers_that_depend_on_each_other_may_be_one_sample(tmp_path: Path) -> None:
    loss = "((pulls - forces).square() * (pulls.mean(0) - 1).square()).mean() + 0 * energy"
    given = {"norm": "nn.Identity()", "sizes": UNEQUAL, "loss": loss, "scale": " / 4"}
    result = watch_source(MOLECULES.format(**given), tmp_path)
    assert result.verdict is not Verdict.EQUIVALENT
    assert "GA901" not in [d.mistake.code for d in result.diagnosis]


def test_a_label_that_is_expanded_to_rows_is_none_of_the_rows_of_another(tmp_path: Path) -> None:
    source = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model = nn.Linear(5, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
bags = [(torch.randn(2 + i % 3, 5), torch.tensor(i % 3)) for i in range(12)]
for start in range(0, 12, 4):
    for tiles, label in bags[start:start + 4]:
        (nn.functional.cross_entropy(model(tiles), label.expand(len(tiles))) / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    result = watch_source(source, tmp_path)
    assert len(result.windows) == 3, result.reason
