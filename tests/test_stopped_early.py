"""A run that is stopped on purpose says that the end of the data was not checked: that is where loops go wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradcheck_accum.cli import main

DROPS_THE_REMAINDER = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=3)
parser.add_argument("--accum", type=int, default=4)
args = parser.parse_args()
torch.manual_seed(0)
x, y = torch.randn(54, 5), torch.randn(54, 2)
model = torch.nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    optimizer.zero_grad()
    for i, (a, b) in enumerate(zip(x.split(args.rows), y.split(args.rows))):
        loss = torch.nn.functional.mse_loss(model(a), b) / args.accum
        loss.backward()
        if (i + 1) % args.accum == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
"""54 samples in batches of 3 and windows of 4: the last two of 18 micro-batches never reach a step."""


OTHER_FORMATS = ["--output-format", "github"], ["--output-format", "json"]


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(DROPS_THE_REMAINDER)


def test_the_whole_run_deviates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "train.py"]) == 1
    assert "stopped" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [[], *(pytest.param(options, marks=pytest.mark.thorough) for options in (["--quiet"], *OTHER_FORMATS))],
)
def test_every_format_says_that_an_equivalent_run_was_stopped(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "train.py", "--max-windows", "3", *options]) == 0
    said = capsys.readouterr().out
    assert options == ["--quiet"] or "all 3 steps match the large-batch gradient; stopped before the end" in said
    if not options:
        assert "the end of the data was not checked" in " ".join(said.split())


def test_a_comparison_of_stopped_runs_says_so_too(capsys: pytest.CaptureFixture[str]) -> None:
    runs = ["--with", "", "--with", "--rows 12 --accum 1"]
    assert main(["compare", "train.py", *runs, "--max-windows", "2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "all 2 steps match the reference gradient; stopped before the end" in said
