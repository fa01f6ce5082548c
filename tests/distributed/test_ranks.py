"""verify over two ranks of DistributedDataParallel on a CPU (gloo), started by torchrun as a user would."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torchrun import ROOT, TORCHRUN, environment, launch, needs_ranks

FIXTURE = ROOT / "fixtures" / "distributed" / "ddp.py"
WORKER = Path(__file__).parent / "worker.py"

pytestmark = needs_ranks

EXPECTED = {
    "right": ("equivalent", []),
    "right, with a remainder": ("equivalent", []),
    "right, of more weights than a sketch": ("equivalent", []),
    "unscaled, of more weights than a sketch": ("deviates", ["GA101"]),
    "right, in float64": ("equivalent", []),
    "right, with dropout": ("equivalent", []),
    "right, clipped": ("equivalent", []),
    "right, one micro-batch each": ("equivalent", []),
    "batch normalisation": ("not-equivalent-by-construction", ["GA901"]),
    "unscaled": ("deviates", ["GA101"]),
    "remainder divided by K": ("deviates", ["GA103"]),
    "unequal tokens": ("deviates", ["GA104"]),
    "unequal tokens, one micro-batch each": ("deviates", ["GA104"]),
    "sum over all tokens": ("equivalent", []),
    "sum over a rank's part of all tokens": ("equivalent", []),
    "sum over all tokens, averaged once more": ("deviates", ["GA102"]),
    "sum over own tokens": ("deviates", ["GA104"]),
    "gradients scaled by all tokens": ("equivalent", []),
    "right, with unused parameters": ("equivalent", []),
    "unscaled, with unused parameters": ("deviates", ["GA101"]),
    "right, in views of the buckets": ("equivalent", []),
    "right, the optimizer spread": ("equivalent", []),
    "unscaled, the optimizer spread": ("deviates", ["GA101"]),
    "averaged by a hook": ("equivalent", []),
    "averaged by a hook, in float16": ("inconclusive", []),
    "synced every time": ("equivalent", ["GA701"]),
    "paused around backward alone": ("equivalent", ["GA701"]),
    "never synced": ("deviates", ["GA702"]),
    "last one local": ("deviates", ["GA702"]),
    "joined": ("deviates", ["GA103"]),
    "joined, over those that are left": ("equivalent", []),
    "one rank changes its gradient": ("inconclusive", []),
}

DIVERGED = {"never synced", "last one local"}
"""After their first step the ranks' weights differ, and there is no one large batch any more."""

REDRAWN = {"right, with dropout"}
"""Its masks are the loop's own, which the arithmetic does not draw."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two ranks measured of every case, in one launch."""
    written = tmp_path_factory.mktemp("ranks") / "results.json"
    ended = launch(WORKER.parent, str(WORKER), str(written))
    assert ended.returncode == 0, ended.stderr
    return json.loads(written.read_text())


@pytest.fixture(scope="module")
def results(measured: dict[str, Any]) -> dict[str, Any]:
    """What was measured of the cases."""
    return {name: found for name, found in measured.items() if name != "undisturbed"}


def test_every_case_is_expected(results: dict[str, Any]) -> None:
    assert results.keys() == EXPECTED.keys()


@pytest.mark.parametrize("case", EXPECTED)
def test_verdict_and_cause(case: str, results: dict[str, Any]) -> None:
    found = results[case]
    assert (found["verdict"], found["codes"]) == EXPECTED[case], found["reason"]


@pytest.mark.parametrize("case", [c for c, (v, _) in EXPECTED.items() if v != "inconclusive" and c not in REDRAWN])
def test_what_is_measured_is_the_distance_from_the_large_batch_of_all_ranks(case: str, results: dict[str, Any]) -> None:
    found = results[case]
    compared = list(zip(found["measured"], found["truth"], strict=True))
    for (error, ratio), (true_error, true_ratio) in compared[:1] if case in DIVERGED else compared:
        # Of more weights than a sketch has buckets, an error is known to a few per cent.
        assert error == pytest.approx(true_error, rel=0.15 if "sketch" in case else 1e-5, abs=1e-6)
        if case not in DIVERGED:
            assert ratio == pytest.approx(true_ratio, rel=1e-5)


@pytest.mark.parametrize("case", ["unscaled", "unscaled, with unused parameters"])
def test_an_update_is_compared_where_the_reference_is_a_multiple_of_the_gradient(
    case: str, results: dict[str, Any]
) -> None:
    # SGD without momentum moves the weights by the gradient: its update is as wrong.
    found = results[case]
    assert found["updates"] == pytest.approx([error for error, _ in found["truth"]], rel=1e-5)


@pytest.mark.parametrize(
    "case", ["right", "unequal tokens", "last one local", "unscaled, the optimizer spread", "sum over own tokens"]
)
def test_no_update_is_compared_where_the_reference_is_not_known(case: str, results: dict[str, Any]) -> None:
    assert set(results[case]["updates"]) == {None}


def test_who_makes_something_else_of_the_average_is_told(results: dict[str, Any]) -> None:
    assert "register_comm_hook" in results["averaged by a hook, in float16"]["reason"]


def test_a_window_holds_the_micro_batches_of_all_ranks(results: dict[str, Any]) -> None:
    assert results["right, with a remainder"]["micro_batches"] == [4, 4, 2]
    assert results["right, with a remainder"]["units"] == [24, 24, 12]
    assert results["joined, over those that are left"]["micro_batches"] == [2, 2, 1, 1]
    ragged = results["unequal tokens, one micro-batch each"]
    weights, units = ragged["weights"][0], ragged["units"][0]
    # Each rank's mean counts half, whatever part of the units it holds.
    assert sum(units / (2 * w) for w in weights) == pytest.approx(units)


def test_ranks_of_the_same_data_are_replayed_as_one_batch_each(results: dict[str, Any]) -> None:
    assert all(
        "one large batch" in found["reference"] for name, found in results.items() if found["verdict"] == "equivalent"
    )


def test_what_the_needless_averages_cost_is_told(results: dict[str, Any]) -> None:
    weights = 8 * 16 + 16 + 16 * 3 + 3
    told = [note for note in results["synced every time"]["notes"] if "were not needed" in note]
    assert told[0].startswith(
        f"3 of 6 averages over the ranks were not needed: rank 0 exchanged {3 * 4 * weights / 1024:.3g} KiB"
    )
    assert not any("were not needed" in note for note in results["right"]["notes"])


def test_unequal_ranks_are_named_with_their_units(results: dict[str, Any]) -> None:
    (message,) = results["unequal tokens, one micro-batch each"]["messages"]
    assert message.startswith("mean of means: 2 ranks hold ")


def test_a_watched_run_ends_with_the_weights_of_a_plain_one(measured: dict[str, Any]) -> None:
    assert measured["undisturbed"]


def test_one_report_for_all_ranks_and_nothing_left_behind(tmp_path: Path) -> None:
    ended = launch(ROOT, "-m", "gradcheck_accum", "verify", str(FIXTURE), temporary=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("equivalent: all 3 steps match the large-batch gradient") == 1
    assert "3 windows watched on 2 ranks" in ended.stdout
    assert ended.stderr.count("weights add up to") == 1
    assert not list(tmp_path.glob("gradcheck-accum-*"))


def twin(folder: Path, old: str, new: str) -> None:
    source = FIXTURE.read_text(encoding="utf-8")
    assert source.count(old) == 1
    (folder / "train.py").write_text(source.replace(old, new), encoding="utf-8")


def test_a_wrong_loop_is_told_once_in_json(tmp_path: Path) -> None:
    twin(tmp_path, " / held", "")
    ended = launch(tmp_path, "-m", "gradcheck_accum", "verify", "train.py", "--output-format", "json")
    assert ended.returncode == 1
    report = json.loads(ended.stdout)
    assert (report["verdict"], report["ranks"]) == ("deviates", 2)
    assert [(d["code"], d["line"]) for d in report["diagnosis"]] == [("GA101", 31)]
    assert [w["grad_norm_ratio"] for w in report["windows"]] == pytest.approx([4.0, 4.0, 2.0], rel=1e-5)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise ValueError('no data')", "rank 1: the script raised ValueError: no data (train.py:28)"),
        pytest.param(
            "__import__('os').kill(__import__('os').getpid(), 9)",
            "rank 1: the script was killed by SIGKILL",
            marks=pytest.mark.thorough,
        ),
        ("break", "rank 1 had ended by then, after 4 micro-batches, rank 0 ran"),
    ],
    ids=["raises", "is killed", "has less data"],
)
def test_a_rank_that_fails_ends_the_run_and_is_named(fault: str, message: str, tmp_path: Path) -> None:
    start = "        held = min("
    twin(tmp_path, start, f"        if dist.get_rank() == 1 and i == 4:\n            {fault}\n{start}")
    if fault == "break":
        source = (tmp_path / "train.py").read_text(encoding="utf-8")
        (tmp_path / "train.py").write_text(source.replace("    dist.destroy_process_group()\n", ""), encoding="utf-8")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    ended = launch(tmp_path, "-m", "gradcheck_accum", "verify", "train.py", temporary=temporary)
    assert ended.returncode == 1
    assert (ended.stdout + ended.stderr).count(message) == 1
    assert not list(temporary.glob("gradcheck-accum-*"))


@pytest.mark.parametrize("stopped", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_step_that_a_stopped_rank_had_yet_to_make_is_not_judged(stopped: int, tmp_path: Path) -> None:
    """The other one makes its second step, and waits for it in the third, until its process has ended."""
    interrupted = f"if dist.get_rank() == {stopped} and i == 7:\n                os.kill(os.getpid(), signal.SIGINT)"
    twin(tmp_path, "        if last:\n", f"        if last:\n            {interrupted}\n")
    source = (tmp_path / "train.py").read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(f"import os\nimport signal\n{source}", encoding="utf-8")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    ended = launch(tmp_path, "-m", "gradcheck_accum", "verify", "train.py", temporary=temporary)
    assert ended.stdout.startswith("train.py: equivalent: all 1 steps match the large-batch gradient"), ended.stderr
    assert "1 window watched on 2 ranks" in ended.stdout
    assert "stopped before the script ended" in " ".join(ended.stdout.split())
    assert not list(temporary.glob("gradcheck-accum-*"))


# Several machines: as many launchers, which share no folder


def launch_on_two_machines(folder: Path, *command: str) -> list[subprocess.CompletedProcess[str]]:
    """Run a command on two ranks, each started by a launcher of its own, with a temporary folder of its own."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    running = []
    for machine in range(2):
        temporary = folder / f"machine-{machine}"
        temporary.mkdir()
        meeting = ["--nnodes", "2", "--node-rank", str(machine), "--master-addr", "127.0.0.1"]
        started = subprocess.Popen(
            [*TORCHRUN, *meeting, "--master-port", str(port), *command],
            cwd=folder,
            env=environment(temporary),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(started)
    ended = []
    for process in running:
        out, err = process.communicate(timeout=300)
        ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return ended


VERIFY = "-m", "gradcheck_accum", "verify"


def test_ranks_on_two_machines_give_one_report(tmp_path: Path) -> None:
    first, second = launch_on_two_machines(tmp_path, *VERIFY, str(FIXTURE))
    assert first.returncode == 0, first.stderr
    assert "3 windows watched on 2 ranks" in first.stdout
    assert "equivalent: all 3 steps match the large-batch gradient" in first.stdout
    assert (second.returncode, second.stdout) == (0, "")
    assert not list(tmp_path.glob("machine-*/gradcheck-accum-*"))


@pytest.mark.thorough
def test_a_wrong_loop_on_two_machines_is_measured_over_both(tmp_path: Path) -> None:
    twin(tmp_path, " / held", "")
    first, second = launch_on_two_machines(tmp_path, *VERIFY, "train.py", "--output-format", "json")
    assert (first.returncode, second.returncode) == (1, 0)
    report = json.loads(first.stdout)
    assert (report["verdict"], report["ranks"]) == ("deviates", 2)
    assert [(d["code"], d["line"]) for d in report["diagnosis"]] == [("GA101", 31)]
    assert [w["micro_batches"] for w in report["windows"]] == [8, 8, 4]
    assert [w["grad_norm_ratio"] for w in report["windows"]] == pytest.approx([4.0, 4.0, 2.0], rel=1e-5)


MACHINE_DIES = """\
import os
            verify = os.getppid()
            launcher = int(open(f"/proc/{verify}/stat").read().rpartition(")")[2].split()[1])
            for process in (launcher, verify, os.getpid()):
                os.kill(process, 9)"""


@pytest.mark.parametrize(
    ("rank", "fault", "message"),
    [
        pytest.param(
            1,
            "raise ValueError('no data')",
            "rank 1: the script raised ValueError: no data (train.py:28)",
            marks=pytest.mark.thorough,
        ),
        pytest.param(1, MACHINE_DIES, "rank 1 did not report (process or host lost)", marks=pytest.mark.thorough),
        (0, MACHINE_DIES, "rank 0 exited without a report: torchrun's store at 127.0.0.1:"),
    ],
    ids=["the script of the second fails", "the second dies", "the first dies"],
)
@pytest.mark.skipif(not Path("/proc").exists(), reason="who started a process is read from /proc")
def test_a_machine_that_dies_is_told_by_the_other(rank: int, fault: str, message: str, tmp_path: Path) -> None:
    start = "        held = min("
    twin(tmp_path, start, f"        if dist.get_rank() == {rank} and i == 4:\n            {fault}\n{start}")
    ended = launch_on_two_machines(tmp_path, *VERIFY, "train.py")
    assert sum((own.stdout + own.stderr).count(message) for own in ended) == 1
    assert not any("Traceback" in own.stdout for own in ended)


def test_ranks_on_several_machines_without_a_store_to_meet_at_are_refused(tmp_path: Path) -> None:
    ranks = {**environment(), "RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    ranks.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    ended = subprocess.run(
        [sys.executable, *VERIFY, str(FIXTURE)], env=ranks, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert "2 ranks on several machines, not started by torchrun" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
