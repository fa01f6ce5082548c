"""compare on whole scripts, through the command line and real processes: the same script at K = 1 is the reference.

What loops are judged by is tested on loops of this process (test_compare_loop.py), which needs no start of PyTorch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gradcheck_accum.cli import main
from gradcheck_accum.side_by_side.proposal import proposed

SCRIPT = """\
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, required=True)
parser.add_argument("--rows", type=int, default=45)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--in-order", action="store_true")
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(3)
data = torch.utils.data.TensorDataset(torch.randn(args.rows, 4), torch.randint(0, 3, (args.rows,)))
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
loader = torch.utils.data.DataLoader(data, batch_size=args.batch_size, shuffle=not args.in_order)
running = torch.zeros(())
for epoch in range(args.epochs):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        running += loss.detach() / args.accum
        (loss / args.accum).backward()
        if (i + 1) % args.accum == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
            print(f"loss {running.item():.3f}")
            running.zero_()
"""
THREE_OF_5 = "--batch-size 5 --accum 3"
ONE_OF_15 = "--batch-size 15 --accum 1"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and a folder for temporary files that nothing may be left in."""
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    return temporary


def compare(
    source: str, capfd: pytest.CaptureFixture[str], *options: str, of: tuple[str, ...] = (THREE_OF_5, ONE_OF_15)
) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of ``compare`` on a script with this source."""
    Path("train.py").write_text(source)
    each = [word for one in of for word in ("--with", one)]
    status = main(["compare", "train.py", *each, *options])
    assert os.listdir() == ["train.py"]
    assert [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("gradcheck")] == []
    out, err = capfd.readouterr()
    return status, out, err


def reported(source: str, capfd: pytest.CaptureFixture[str], *options: str, **kwargs: Any) -> tuple[int, Any]:
    """Exit status and report of ``compare`` with these options, the script's own after ``--``."""
    status, out, err = compare(source, capfd, "--output-format", "json", *options, **kwargs)
    assert "Traceback" not in err
    return status, json.loads(out)


@pytest.mark.slow
def test_a_right_loop_is_equivalent(capfd: pytest.CaptureFixture[str]) -> None:
    varied = ("--vary", "batch-size=5,15", "--vary", "accum=3,1")
    status, report = reported(SCRIPT, capfd, *varied, "--", "--epochs", "2", of=())
    assert (status, report["verdict"]) == (0, "equivalent")
    assert report["reference"] == {"arguments": ONE_OF_15, "micro_batches": 1, "rows": 15, "steps": 6}
    (one,) = report["compared"]
    assert (one["arguments"], one["micro_batches"], one["rows"]) == (THREE_OF_5, 3, 15)
    assert [step["rows"] for step in one["windows"]] == [15] * 6
    assert all(step["grad_rel_error"] <= step["tolerance"] < 1e-12 for step in one["windows"])
    assert one["differences"] == []


def test_a_loss_that_is_not_divided_deviates_and_the_ledger_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, _ = compare(SCRIPT.replace("(loss / args.accum).backward()", "loss.backward()"), capfd)
    assert status == 1
    assert out.startswith(
        "train.py: deviates: 3 of 3 steps got another gradient than the reference's on the same data\n"
        "help: divide the loss by 3"
    )
    # Three means instead of their mean: |3 g - g| / |g|.
    assert [line.split()[3:6:2] for line in out.splitlines() if line.endswith("deviates")] == [["2.000", "3.000"]] * 3
    assert "train.py:23: GA101 [missing-loss-scaling]" in out
    assert all(len(line) <= 80 for line in out.splitlines() if "train.py" not in line)


@pytest.mark.slow
def test_a_logged_loss_that_is_k_times_too_large_while_the_gradient_is_right_is_said(
    capfd: pytest.CaptureFixture[str],
) -> None:
    status, out, _ = compare(SCRIPT.replace("loss.detach() / args.accum", "loss.detach()"), capfd)
    assert status == 1
    assert "train.py: equivalent: all 3 steps got the reference's gradient" in out
    assert (
        "train.py:27: loss: the loss that the script reads is 3 times too large: as many times as a step has "
        "micro-batches; the gradient is right" in out
    )


@pytest.mark.slow
def test_a_script_that_takes_no_such_argument_is_one_line_and_2(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = compare(SCRIPT, capfd, of=("--batch-size 5 --bogus 3", ONE_OF_15))
    assert (status, out) == (2, "")
    ours = [line for line in err.splitlines() if line.startswith("gradcheck-accum")]
    assert ours == ["gradcheck-accum: train.py: with --batch-size 5 --bogus 3: the script ended with exit status 2"]


@pytest.mark.slow
def test_a_configuration_that_dies_is_one_line_and_2(capfd: pytest.CaptureFixture[str]) -> None:
    loop = "    for i, (x, y) in enumerate(loader):\n"
    dying = f"{loop}        if args.accum == 1 and epoch:\n            raise ValueError('gone')\n"
    source = SCRIPT.replace(loop, dying)
    line = source[: source.index("raise ValueError")].count("\n") + 1
    status, out, err = compare(source, capfd, "--", "--epochs", "2")
    assert (status, out) == (2, "")
    assert f"gradcheck-accum: train.py: with {ONE_OF_15}: the script raised ValueError: gone (train.py:{line})" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--with", THREE_OF_5], "compare takes two configurations or more"),
        (["--with", THREE_OF_5, "--with", THREE_OF_5], "two of the configurations are the same"),
        (["--with", "--batch '5", "--with", ONE_OF_15], "no closing quotation"),
        (["--vary", "accum=3,1", "--vary", "batch-size=5"], "accum has 2, batch-size has 1"),
        (["--vary", "accum"], "--vary accum: it is NAME=V1,V2"),
        (["--vary", "accum=3,1", "--with", ONE_OF_15], "give one of them"),
        (["--with", THREE_OF_5, "--with", ONE_OF_15, "--rtol", "1"], "--rtol and --atol are given both or neither"),
        (["--with", THREE_OF_5, "--with", ONE_OF_15, "-m", "package"], "compare takes either a script or -m MODULE"),
    ],
)
def test_configurations_that_make_no_sense_are_one_line_and_2(
    options: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "train.py", *options]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_one_of_several_ranks_is_refused(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    status, _, err = compare("", capfd)
    assert status == 2
    assert err.count("\n") == 1
    assert "one of several ranks" in err


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (
            ["--batch-size", "5", "--lr", "0.1", "--grad-accum", "3"],
            "gradcheck-accum compare train.py '--with=--batch-size 5 --grad-accum 3' "
            "'--with=--batch-size 15 --grad-accum 1' -- --lr 0.1",
        ),
        (
            ["trainer.accumulate_grad_batches=3", "data.batch_size=5"],
            "gradcheck-accum compare train.py '--with=data.batch_size=5 trainer.accumulate_grad_batches=3' "
            "'--with=data.batch_size=15 trainer.accumulate_grad_batches=1'",
        ),
        (
            ["--bsz=5"],
            "gradcheck-accum compare train.py '--with=--bsz 5 --accum-steps 7' '--with=--bsz 35 --accum-steps 1'",
        ),
        (["--lr", "0.1"], ""),
        (["--batch-size", "5", "--accum-steps", "1"], ""),
        (["--batch-size", "many"], ""),
    ],
)
def test_the_comparison_that_arguments_show(arguments: list[str], command: str) -> None:
    Path("train.py").write_text("parser.add_argument('-k', '--accum-steps', type=int, default=7)\n")
    assert proposed("train.py", arguments) == command


@pytest.mark.slow
def test_what_verify_leaves_open_ends_with_the_comparison_that_decides_it(capfd: pytest.CaptureFixture[str]) -> None:
    hook = "optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)\n"
    clamping = f"{hook}model.weight.register_hook(lambda gradient: gradient.clamp(-0.02, 0.02))\n"
    Path("train.py").write_text(SCRIPT.replace(hook, clamping).replace("accum", "accum_steps"))
    assert main(["verify", "train.py", "--", "--batch-size", "5", "--accum_steps", "3"]) == 3
    last = capfd.readouterr().out.splitlines()[-1]
    assert last == (
        "to decide it: gradcheck-accum compare train.py '--with=--batch-size 5 --accum_steps 3' "
        "'--with=--batch-size 15 --accum_steps 1'"
    )
