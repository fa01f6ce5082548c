"""compare over ranks of DistributedDataParallel on a CPU (gloo), started by torchrun as a user would."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchrun import TWO_RANKS, environment, needs_ranks

from gradcheck_accum.cli import main

SCRIPT = """\
import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--accum", type=int)
parser.add_argument("--mistake", default="")
args = parser.parse_args()
dist.init_process_group("gloo")
torch.set_default_dtype(torch.float64)
torch.manual_seed(3)
data = TensorDataset(torch.randn(90, 4), torch.randint(0, 3, (90,)))
loader = DataLoader(data, batch_size=args.batch_size, sampler=DistributedSampler(data, shuffle=False))
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
running = 0.0
for i, (x, y) in enumerate(loader):
    last = (i + 1) % args.accum == 0
    synced = i % args.accum == 0 if args.mistake == "first" else last or "always" in args.mistake
    with nullcontext() if synced else model.no_sync():
        loss = nn.functional.cross_entropy(model(x), y)
        (loss if args.mistake == "undivided" else loss / args.accum).backward()
    running += loss.detach() if "logged" in args.mistake else loss.detach() / args.accum
    if last:
        optimizer.step()
        optimizer.zero_grad()
        running.item()
        running = 0.0
        # here
dist.destroy_process_group()
"""
REFERENCE, THREE_OF_5 = "--batch-size 15 --accum 1", "--batch-size 5 --accum 3"
ON_ONE_RANK = "env WORLD_SIZE=1 --batch-size 5 --accum 6"


def launch(folder: Path, source: str, *options: str, of: tuple[str, ...]) -> subprocess.Popen[str]:
    """Start ``compare`` of a script with this source on two ranks, with a temporary folder for it alone."""
    (folder / "train.py").write_text(source, encoding="utf-8")
    (folder / "temporary").mkdir()
    each = [word for one in of for word in ("--with", one)]
    return subprocess.Popen(
        [*TWO_RANKS, "-m", "gradcheck_accum", "compare", "train.py", *each, *options],
        cwd=folder,
        env=environment(folder / "temporary"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def ended(started: subprocess.Popen[str], folder: Path) -> tuple[int, str, str]:
    """Its exit status, standard output and standard error; nothing of it is left."""
    out, err = started.communicate(timeout=300)
    assert not list((folder / "temporary").glob("gradcheck-accum-*"))
    # Who is still there holds the session's group.
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, 0)
    return started.returncode, out, err


EACH = (
    REFERENCE,
    THREE_OF_5,
    ON_ONE_RANK,
    f"{THREE_OF_5} --mistake undivided",
    f"{THREE_OF_5} --mistake first",
    f"{THREE_OF_5} --mistake always,logged",
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All configurations of one script, right and wrong, and one reference, in one launch."""
    folder = tmp_path_factory.mktemp("ranks")
    status, out, err = ended(launch(folder, SCRIPT, "--output-format", "json", of=EACH), folder)
    assert status == 1, err
    return json.loads(out)


@pytest.fixture(scope="module")
def compared(report: Any) -> dict[str, Any]:
    return {one["arguments"]: one for one in report["compared"]}


class TestOneLaunch:
    pytestmark = needs_ranks

    def test_the_reference_is_the_large_batch_of_both_ranks(self, report: Any) -> None:
        made_of = {"micro_batches": 2, "rows": 30, "steps": 3, "steps_by_epoch": [3], "ranks": 2}
        assert report["reference"] == {"arguments": REFERENCE, **made_of}

    @pytest.mark.parametrize("which", [THREE_OF_5, ON_ONE_RANK, EACH[-1]])
    def test_right_loops_match_whatever_ranks_they_have(self, which: str, compared: dict[str, Any]) -> None:
        one = compared[which]
        assert (one["verdict"], one["micro_batches"], one["rows"]) == ("equivalent", 6, 30)
        assert one.get("ranks", 1) == (1 if which == ON_ONE_RANK else 2)
        assert all(step["grad_rel_error"] <= step["tolerance"] < 1e-12 for step in one["windows"])

    def test_a_loss_that_is_not_divided_is_three_times_the_reference(self, compared: dict[str, Any]) -> None:
        one = compared[f"{THREE_OF_5} --mistake undivided"]
        assert one["verdict"] == "deviates"
        assert [step["grad_norm_ratio"] for step in one["windows"]] == pytest.approx([3.0] * 3)
        assert [d["code"] for d in one["verify"]["diagnosis"]] == ["GA101"]

    def test_a_step_on_gradients_that_were_not_averaged_is_as_far_off_as_the_worst_rank(
        self, compared: dict[str, Any]
    ) -> None:
        one = compared[f"{THREE_OF_5} --mistake first"]
        assert one["verdict"] == "deviates"
        assert one["windows"][0]["grad_rel_error"] == pytest.approx(off_where_only_the_first_is_averaged())
        assert [d["code"] for d in one["verify"]["diagnosis"]] == ["GA702"]

    def test_a_loss_that_a_rank_reads_is_compared_with_that_of_its_part(self, compared: dict[str, Any]) -> None:
        (difference,) = compared[EACH[-1]]["differences"]
        assert difference["message"].startswith("the loss that the script reads is 3 times too large")
        # On one rank it is the loss of other rows.
        assert [compared[which]["differences"] for which in (THREE_OF_5, ON_ONE_RANK)] == [[], []]


def off_where_only_the_first_is_averaged() -> float:
    """|g_r - g| / |g| of the rank where it is most, at the first step: only the first micro-batch is averaged."""
    generator_state, before = torch.get_rng_state(), torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(3)
        x, y = torch.randn(90, 4), torch.randint(0, 3, (90,))
        model = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3))
    finally:
        torch.set_default_dtype(before)
        torch.set_rng_state(generator_state)

    def gradient(rows: list[int]) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    # DistributedSampler without shuffling: every second row to each rank.
    own = [[gradient(list(range(rank + 2 * 5 * j, 2 * 5 * (j + 1), 2))) / 3 for j in range(3)] for rank in range(2)]
    right = sum(map(sum, own)) / 2
    averaged = (own[0][0] + own[1][0]) / 2
    return max(float((averaged + one[1] + one[2] - right).norm() / right.norm()) for one in own)


class TestEndings:
    """Whatever ends a run, its ranks end too, and nothing is left behind."""

    pytestmark = needs_ranks

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            ("raise ValueError('no data')", "rank 1: the script raised ValueError: no data (train.py:35)"),
            pytest.param(
                "__import__('os').kill(__import__('os').getpid(), 9)",
                "rank 1: the script was killed by SIGKILL",
                marks=pytest.mark.thorough,
            ),
        ],
        ids=["raises", "is killed"],
    )
    def test_a_rank_that_fails_is_named_in_one_line(self, fault: str, message: str, tmp_path: Path) -> None:
        source = SCRIPT.replace("# here", f"if dist.get_rank() == 1 and args.accum == 3: {fault}")
        status, out, err = ended(launch(tmp_path, source, of=(REFERENCE, THREE_OF_5)), tmp_path)
        assert (status, out) == (1, "")
        ours = [line for line in err.splitlines() if line.startswith("gradcheck-accum")]
        assert ours == [f"gradcheck-accum: train.py: with {THREE_OF_5}: {message}"]

    def test_who_interrupts_the_launcher_gets_the_steps_until_then(self, tmp_path: Path) -> None:
        source = SCRIPT.replace("for i, (x, y) in", "for i, (x, y) in __import__('itertools').cycle(").replace(
            "enumerate(loader):", "enumerate(loader)):"
        )
        waits = "if dist.get_rank() == 0 and args.accum == 1 and i == 2: print('in the midst', flush=True)"
        started = launch(tmp_path, source.replace("# here", waits), of=(REFERENCE, THREE_OF_5))
        assert started.stderr is not None
        for line in started.stderr:
            if "in the midst" in line:
                break
        os.killpg(started.pid, signal.SIGINT)
        _, out, _ = ended(started, tmp_path)
        assert out.startswith("train.py: equivalent: all ")
        assert "stopped before the script ended" in " ".join(out.split())


class TestRefused:
    """What cannot be compared on several ranks is one line of the first, before anything of the script runs."""

    @pytest.fixture(autouse=True)
    def _launched(self, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "1"}.items():
            monkeypatch.setenv(name, value)
        Path("train.py").write_text("raise ValueError")

    @staticmethod
    def compare(capfd: pytest.CaptureFixture[str], of: tuple[str, str]) -> tuple[int, str, str]:
        status = main(["compare", "train.py", *[word for one in of for word in ("--with", one)]])
        assert not list(Path(os.environ["TMPDIR"]).glob("gradcheck-accum-*"))
        return status, *capfd.readouterr()

    def test_ranks_on_several_machines(
        self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        said = "gradcheck-accum: train.py: compare supports ranks on one machine, and these are on several\n"
        assert self.compare(capfd, (REFERENCE, THREE_OF_5)) == (2, "", said)

    def test_more_ranks_than_there_are(self, capfd: pytest.CaptureFixture[str]) -> None:
        said = "a configuration sets WORLD_SIZE=3, and 2 ranks were launched: set 1 to 2"
        found = self.compare(capfd, (f"env WORLD_SIZE=3 {REFERENCE}", THREE_OF_5))
        assert found == (2, "", f"gradcheck-accum: train.py: {said}\n")

    def test_another_rank_than_the_first_says_nothing(
        self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setattr("gradcheck_accum.verify.ranks.folder.START", 0.0)  # rank 0 never comes
        assert self.compare(capfd, (REFERENCE, THREE_OF_5)) == (0, "", "")


class TestOneRank:
    """A launch of one rank: the processes of the configurations still meet, each at a place of its own."""

    pytestmark = needs_ranks

    @pytest.fixture(autouse=True)
    def _launched(self, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = str(found.getsockname()[1])
        for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, value)

    def compare(self, source: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
        Path("train.py").write_text(source, encoding="utf-8")
        status = main(
            ["compare", "train.py", "--with", "--batch-size 30 --accum 1", "--with", "--batch-size 5 --accum 6"]
        )
        return status, *capfd.readouterr()

    def test_configurations_do_not_meet_each_other(self, capfd: pytest.CaptureFixture[str]) -> None:
        status, out, err = self.compare(SCRIPT, capfd)
        assert (status, out.partition("\n")[0]) == (
            0,
            "train.py: equivalent: all 3 steps match the reference gradient",
        ), err

    def test_sharded_weights_are_one_line(self, capfd: pytest.CaptureFixture[str]) -> None:
        source = SCRIPT.replace("DistributedDataParallel(nn", "fully_shard(nn").replace(
            "model.no_sync()", "nullcontext()"
        )
        source = "from torch.distributed.fsdp import fully_shard\n" + source
        status, out, err = self.compare(source, capfd)
        assert (status, out) == (2, "")
        ours = [line for line in err.splitlines() if line.startswith("gradcheck-accum")]
        said = "compare does not support weights that are sharded over the ranks: use verify"
        assert ours == [f"gradcheck-accum: train.py: with --batch-size 30 --accum 1: {said}"]
