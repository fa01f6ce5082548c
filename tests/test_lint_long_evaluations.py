"""Loops beside a training that only report: they take long, and what the training does wrong is found all the same."""

from __future__ import annotations

from gradcheck_accum.lint import lint_source
from gradcheck_accum.lint.examination.examine import examine

_EVALUATION = """
def evaluate(model, criterion, dataset):
    total, count = 0.0, 0
    for x, y in torch.utils.data.DataLoader(dataset, batch_size=8):
        for shift, _ in torch.utils.data.DataLoader(dataset, batch_size=8):
            for scale, _ in torch.utils.data.DataLoader(dataset, batch_size=8):
                predicted = model(x.to("cuda") * scale + shift)
                total += criterion(predicted, y.to("cuda")).item()
                count += 1
                hits = (predicted.argmax(-1) == y).float().mean().item()
                print(f"{count}: {total / count:.3f} {hits:.3f}")
    return total / count
"""
_TRAINING = """
import torch

def train(model, criterion, loader, dataset):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best = 1e9
    for epoch in range(30):
        model.train()
        for i, (x, y) in enumerate(loader):
            loss = criterion(model(x), y)
            loss.backward()
            if (i + 1) % 4 == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
            if i % 4 == 3:
                best = min(best, evaluate(model, criterion, dataset))
"""
_GATHERED = """
import torch

def train(model, criterion, dataset):
    loader = torch.utils.data.DataLoader(dataset, batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        pool = []
        for number, (x, y) in enumerate(loader):
            x = x.to("cuda").float().contiguous()
            y = y.to("cuda").long().contiguous()
            print(f"{epoch} {number}: {x.shape[0]} {y.shape[0]} {x.mean():.3f} {x.std():.3f} {y.mean():.3f}")
            print(f"{x.amin():.3f} {x.amax():.3f} {y.amin():.3f} {y.amax():.3f} {x.var():.3f} {y.float().var():.3f}")
            pool.append((x, y))
        for i, (x, y) in enumerate(pool):
            loss = criterion(model(x), y) / 4
            loss.backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


def test_a_long_evaluation_does_not_keep_a_training_from_being_followed() -> None:
    examination = examine(_TRAINING + _EVALUATION, "train.py")

    assert examination.not_followed == 0
    assert [finding.mistake.name for finding, _ in examination.evidence] == ["missing-loss-scaling"]


def test_an_evaluation_in_the_loop_itself_does_not_either() -> None:
    called = "                best = min(best, evaluate(model, criterion, dataset))\n"
    body = _EVALUATION.partition("dataset):\n")[2].replace("return total / count", "best = min(best, total / count)")
    shifted = "".join(f"            {line}\n" for line in body.splitlines() if line.strip())
    examination = examine(_TRAINING.replace(called, shifted), "train.py")

    assert examination.not_followed == 0
    assert [finding.mistake.name for finding, _ in examination.evidence] == ["missing-loss-scaling"]


def test_data_that_a_long_loop_gathers_is_all_there() -> None:
    assert [finding.mistake.name for finding in lint_source(_GATHERED, "train.py")] == ["remainder-dropped"]
