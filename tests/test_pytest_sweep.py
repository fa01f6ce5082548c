"""``@pytest.mark.accum_sweep``: a test is called at each K, on the samples of K = 1, and compared with it."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

import pytest

SOURCE = """\
import pytest
import torch

import parts


def train(model, loader, optimizer, criterion, accumulation_steps, wrong=""):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        divisor = 4 if wrong == "capped" and accumulation_steps > 4 else accumulation_steps
        left = len(loader) % accumulation_steps
        is_rest = i >= len(loader) - left
        (loss / (left if is_rest and wrong != "rest by K" else divisor)).backward()
        if (i + 1) % accumulation_steps == 0 or (i + 1 == len(loader) and wrong != "dropped"):
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.accum_sweep(accumulation_steps=[1, 2, 4, 8])
def test_right(net, train_loader, opt, loss_fn, grad_accum_steps):
    train(net, train_loader, opt, loss_fn, grad_accum_steps)


@pytest.mark.accum_sweep(accumulation_steps=[1, 2, 4, 8])
def test_capped(model, loader, optimizer, criterion, accumulation_steps):
    train(model, loader, optimizer, criterion, accumulation_steps, "capped")


@pytest.mark.accum_sweep(accumulation_steps=(3,))
def test_rest_by_k(model, loader, optimizer, criterion, accumulation_steps):
    train(model, loader, optimizer, criterion, accumulation_steps, "rest by K")


@pytest.mark.accum_sweep(accumulation_steps=(3,))
class TestOfAClass:
    def test_dropped(self, model, loader, optimizer, criterion, accumulation_steps):
        train(model, loader, optimizer, criterion, accumulation_steps, "dropped")


@pytest.mark.accum_sweep(accumulation_steps=[2])
def test_k_is_not_heeded(model, loader, optimizer, criterion):
    train(model, loader, optimizer, criterion, 2)


@pytest.mark.accum_sweep(accumulation_steps=[3], factories=parts)
def test_factories(model, teacher, loader, optimizer, K):
    pairs = [(x, teacher(x).detach().argmax(1)) for x in loader]
    train(model, pairs, optimizer, torch.nn.functional.cross_entropy, K)


class TestWithFixtures:
    @pytest.fixture(scope="class")
    def model(self):
        return torch.nn.Linear(2, 3, dtype=torch.float64)

    @pytest.fixture(scope="class")
    def data(self):
        torch.manual_seed(0)
        x = torch.randn(20, 2, dtype=torch.float64)
        return torch.utils.data.TensorDataset(x, torch.randint(0, 3, (20,)))

    @pytest.mark.parametrize("shift", [0, 1])
    @pytest.mark.accum_sweep(accumulation_steps=[5], effective_batch=10)
    def test_shared(self, model, data, optimizer, batch_size, accumulation_steps, shift, criterion=torch.nn.NLLLoss()):
        assert optimizer.param_groups[0]["params"][0] is model.weight
        assert batch_size * accumulation_steps == 10
        loader = torch.utils.data.DataLoader(data, batch_size)
        train(torch.nn.Sequential(model, torch.nn.LogSoftmax(1)), loader, optimizer, criterion, accumulation_steps)

    def test_left_as_they_were(self, model):
        assert all(p.grad is None for p in model.parameters())


@pytest.mark.accum_sweep(accumulation_steps=[2])
def test_nobody_supplies(teacher):
    pass


@pytest.mark.accum_sweep(accumulation_steps=[2], rtol=0.1)
def test_rtol_alone(model):
    pass


@pytest.mark.accum_sweep(accumulation_steps=[2])
@pytest.mark.accum
def test_marked_twice(model):
    pass
"""
PARTS = """\
import torch


def teacher():
    return torch.nn.Linear(4, 3)


def loader(case):
    torch.manual_seed(3)
    return torch.randn(case.samples, 4).split(case.batch_size)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What pytest says of each of these tests: PASSED, or its report."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "test_it.py").write_text(SOURCE)
    (folder / "parts.py").write_text(PARTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml", "found.xml", "test_it.py"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert "Traceback" not in run.stdout + run.stderr
    assert {p.name for p in folder.iterdir()} - {"__pycache__"} == {"test_it.py", "parts.py", "found.xml"}
    found = {}
    for case in ElementTree.parse(folder / "found.xml").iter("testcase"):
        failures = [one.text or "" for kind in ("failure", "error") for one in case.findall(kind)]
        found[case.get("name", "")] = "\n".join(failures) or "PASSED"
    return found


@pytest.mark.parametrize(
    "name",
    [
        *(f"test_right[K={k}]" for k in (2, 4, 8)),
        *(f"test_capped[K={k}]" for k in (2, 4)),
        "test_factories[K=3]",
        "test_shared[0-K=5]",
        "test_shared[1-K=5]",
        "test_left_as_they_were",
    ],
)
def test_what_is_right_passes_at_each_k_with_arguments_that_are_supplied(said: dict[str, str], name: str) -> None:
    assert said[name] == "PASSED"


def test_what_is_wrong_at_one_k_alone_fails_there_with_what_was_measured(said: dict[str, str]) -> None:
    # 48 rows in two steps of 24, each split into 8 micro-batches that are divided by 4; a rest of one, divided by 1.
    report = said["test_capped[K=8]"]
    assert report.startswith("test_capped: deviates: 2 of 3 steps do not match the reference gradient")
    assert "accumulation_steps=1 (3 steps of 1 micro-batch, 24 rows together)" in report
    assert "accumulation_steps=8 (3 steps of 8 micro-batches, 24 rows together)" in report
    rows = [line.split() for line in report.splitlines() if line.endswith(("deviates", "equivalent"))]
    assert [(row[2], row[-3], row[-1]) for row in rows] == [
        ("8", "2.000", "deviates"),
        ("8", "2.000", "deviates"),
        ("1", "1.000", "equivalent"),
    ]


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("test_rest_by_k[K=3]", "test_rest_by_k: deviates: 1 of 3 steps do not match"),
        ("test_dropped[K=3]", "TestOfAClass.test_dropped: deviates: 3 rows used by the reference never reached a"),
        ("test_k_is_not_heeded[K=2]", "test_k_is_not_heeded: inconclusive: the configurations differ in effect"),
        ("test_nobody_supplies[K=2]", "@pytest.mark.accum_sweep: no value for argument 'teacher'"),
        ("test_rtol_alone[K=2]", "@pytest.mark.accum_sweep: rtol and atol are given both or neither"),
        ("test_marked_twice[K=2]", "a test is marked accum_sweep or accum, not both"),
    ],
)
def test_what_is_wrong_is_said(said: dict[str, str], name: str, start: str) -> None:
    assert said[name].startswith(start)


@pytest.mark.parametrize(
    ("marker", "arguments", "said"),
    [
        ("", "model", "takes accumulation_steps=[[]...]: whole numbers, one of them 2 or more"),
        ("accumulation_steps=[1]", "model", "*one of them 2 or more"),
        ("accumulation_steps=[2, 0.5]", "model", "*one of them 2 or more"),
        ("[1, 2]", "model", "takes options by name only (options: accumulation_steps, *"),
        ("accumulation_steps=[2], steps=3", "model", "takes no option 'steps'*"),
        ("accumulation_steps=[2, 3], effective_batch=8", "model", "cannot split an effective_batch of 8 *"),
        ("accumulation_steps=[2]", "", "*every argument of this test is a fixture*"),
    ],
)
def test_a_marker_that_makes_no_sense_is_one_line(
    pytester: pytest.Pytester, marker: str, arguments: str, said: str
) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.accum_sweep({marker})\ndef test_it({arguments}):\n    pass\n")
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"@pytest.mark.accum_sweep {said}"])
