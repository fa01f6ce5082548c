"""compare on whole scripts, through the command line and real processes: the same script at K = 1 is the reference.

What loops are judged by is tested on loops of this process (test_compare_loop.py), which needs no start of PyTorch.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from gradcheck_accum.cli import main
from gradcheck_accum.comparing.configurations import variables_and_arguments
from gradcheck_accum.comparing.proposal import proposed

pytestmark = pytest.mark.usefixtures("elsewhere")

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
    made_of = {"micro_batches": 1, "rows": 15, "steps": 6, "steps_by_epoch": [3, 3]}
    assert report["reference"] == {"arguments": ONE_OF_15, **made_of}
    (one,) = report["compared"]
    assert (one["arguments"], one["micro_batches"], one["rows"]) == (THREE_OF_5, 3, 15)
    assert [step["rows"] for step in one["windows"]] == [15] * 6
    assert all(step["grad_rel_error"] <= step["tolerance"] < 1e-12 for step in one["windows"])
    assert one["differences"] == []


def test_a_loss_that_is_not_divided_deviates_and_the_ledger_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, _ = compare(SCRIPT.replace("(loss / args.accum).backward()", "loss.backward()"), capfd)
    assert status == 1
    assert out.startswith(
        "train.py: deviates: 3 of 3 steps do not match the reference gradient on the same data\n"
        "help: divide the loss by 3"
    )
    # Three means instead of their mean: |3 g - g| / |g|.
    assert [line.split()[3:6:2] for line in out.splitlines() if line.endswith("deviates")] == [["2.000", "3.000"]] * 3
    assert "train.py:23: GA101 [missing-loss-scaling]" in out
    assert all(len(line) <= 80 for line in out.splitlines() if "train.py" not in line)


def test_arguments_may_begin_like_one_of_our_own_options(capfd: pytest.CaptureFixture[str]) -> None:
    short = SCRIPT.replace('"--batch-size"', '"-mb", "--batch-size"')
    one_word = short.replace('"--accum", type=int, required=True', '"--accum", type=int, default=1')
    status, report = reported(one_word, capfd, of=("-mb 15", "-mb 5 --accum 3", "--batch-size=9"))
    assert [one["arguments"] for one in (report["reference"], *report["compared"])][:2] == ["-mb 15", "-mb 5 --accum 3"]
    assert status in (1, 3)


@pytest.mark.slow
def test_a_logged_loss_that_is_k_times_too_large_while_the_gradient_is_right_is_said(
    capfd: pytest.CaptureFixture[str],
) -> None:
    status, out, _ = compare(SCRIPT.replace("loss.detach() / args.accum", "loss.detach()"), capfd)
    assert status == 1
    assert "train.py: equivalent: all 3 steps match the reference gradient" in out
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
def test_the_environment_of_a_configuration_comes_after_env(capfd: pytest.CaptureFixture[str]) -> None:
    source = SCRIPT
    for option, variable in (("batch-size", "BATCH"), ("accum", "GRAD_ACCUM")):
        given = f'parser.add_argument("--{option}", type=int, required=True)'
        source = source.replace(given, f'parser.set_defaults({option.replace("-", "_")}=int(os.environ["{variable}"]))')
    status, report = reported(
        f"import os\n{source}", capfd, of=("env BATCH=5 GRAD_ACCUM=3 --epochs 1", "env BATCH=15 GRAD_ACCUM=1")
    )
    assert (status, report["verdict"]) == (0, "equivalent")
    assert report["reference"]["arguments"] == "env BATCH=15 GRAD_ACCUM=1"


@pytest.mark.parametrize(
    ("line", "variables", "arguments"),
    [
        ("env BATCH=5 NAME='a b' --lr=0.1 key=value", {"BATCH": "5", "NAME": "a b"}, ["--lr=0.1", "key=value"]),
        # Hydra's overrides are arguments.
        ("BATCH=5 +k.a=3", {}, ["BATCH=5", "+k.a=3"]),
        ("env", {}, []),
    ],
)
def test_what_comes_after_env_are_variables(line: str, variables: dict[str, str], arguments: list[str]) -> None:
    assert variables_and_arguments(shlex.split(line)) == (variables, arguments)


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
        (["--with", THREE_OF_5], "compare needs at least two configurations"),
        (["--with", THREE_OF_5, "--with", THREE_OF_5], "two of the configurations are the same"),
        (["--with", "--batch '5", "--with", ONE_OF_15], "no closing quotation"),
        (["--vary", "accum=3,1", "--vary", "batch-size=5"], "accum has 2, batch-size has 1"),
        (["--vary", "accum"], "--vary accum: must be NAME=V1,V2"),
        (["--vary", "accum=3,1", "--with", ONE_OF_15], "use one of them"),
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


def test_no_temporary_folder_is_one_line_and_2(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("train.py").write_text(SCRIPT)
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(Path("nowhere").absolute()))
        status = main(["compare", "train.py", "--with", THREE_OF_5, "--with", ONE_OF_15])
    out, err = capfd.readouterr()
    why = "no temporary folder can be created (No such file or directory): set TMPDIR to one"
    assert (status, out, err) == (2, "", f"gradcheck-accum: train.py: {why}\n")


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
            "gradcheck-accum compare train.py '--with=--bsz=5 --accum-steps 7' '--with=--bsz=35 --accum-steps 1'",
        ),
        (
            ["-b", "6", "-k", "3", "-v"],
            "gradcheck-accum compare train.py '--with=-b 6 -k 3' '--with=-b 18 -k 1' -- -v",
        ),
        (
            ["--per-device-batch", "7", "--grad-acc=2"],
            "gradcheck-accum compare train.py '--with=--per-device-batch 7 --grad-acc=2' "
            "'--with=--per-device-batch 14 --grad-acc=1'",
        ),
        (
            # Of what is given twice the last holds.
            ["--batch-size", "4", "--update-freq", "3", "--batch-size", "5"],
            "gradcheck-accum compare train.py '--with=--batch-size 5 --update-freq 3' "
            "'--with=--batch-size 15 --update-freq 1'",
        ),
        (
            ["--eval-batch-size", "64", "--accum", "3", "--mini_batch", "5", "--num-batches", "9"],
            "gradcheck-accum compare train.py '--with=--mini_batch 5 --accum 3' '--with=--mini_batch 15 --accum 1' "
            "-- --eval-batch-size 64 --num-batches 9",
        ),
        (["--lr", "0.1"], ""),
        (["--eval_batch_size", "64", "--accumulate_on", "3"], ""),
        (["16", "3"], ""),
        (["--batch-size", "5", "--accum-steps", "1"], ""),
        (["--batch-size", "many"], ""),
    ],
)
def test_the_comparison_that_arguments_show(arguments: list[str], command: str) -> None:
    Path("train.py").write_text(
        "parser.add_argument('-k', '--accum-steps', type=int, default=7)\n"
        "parser.add_argument('-b', '--batch', type=int, required=True)\n"
    )
    assert proposed("train.py", arguments) == command


def test_the_comparison_that_the_environment_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("train.py").write_text(
        'import os, argparse\nbatch = int(os.environ.get("BATCH", 5))\naccum = int(os.getenv("GRAD_ACCUM", "3"))\n'
        'threads = int(cache.get("BATCH_SIZE", 9))\n'
    )
    monkeypatch.setenv("GRAD_ACCUM", "7")
    assert proposed("train.py", ["--lr", "0.1"]) == (
        "gradcheck-accum compare train.py '--with=env BATCH=5 GRAD_ACCUM=7' '--with=env BATCH=35 GRAD_ACCUM=1' "
        "-- --lr 0.1"
    )
    # Variables come first.
    assert proposed("train.py", ["--batch-size", "5"]) == (
        "gradcheck-accum compare train.py '--with=env GRAD_ACCUM=7 --batch-size 5' "
        "'--with=env GRAD_ACCUM=1 --batch-size 35'"
    )


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
