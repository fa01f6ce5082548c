"""verify on whole scripts, through the command line and a real child process: what can go wrong with a script."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradcheck_accum.cli import main
from gradcheck_accum.verify import observe, verify_script
from gradcheck_accum.verify.process.child import _Progress

LOOP = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(4, 3), torch.randint(0, 2, (4,))) for _ in range(4)]
for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y) / 2
    loss.backward()
    if (i + 1) % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def verify(source: str | bytes, capfd: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of ``verify`` on a script with this source."""
    Path("train.py").write_bytes(source if isinstance(source, bytes) else source.encode())
    before = sorted(os.listdir())
    status = main(["verify", "train.py", *options])
    assert sorted(os.listdir()) == before
    out, err = capfd.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"def f(:\n", "not Python"),
        (b"name = '\xff'\n", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_script_is_one_line_and_2(
    source: bytes, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    status, out, err = verify(source, capfd)
    assert status == 2
    assert out == ""
    assert err.startswith("gradcheck-accum: train.py: " + message)
    assert err.count("\n") == 1


@pytest.mark.parametrize(("path", "message"), [("absent.py", "no such file"), (".", "is a directory")])
def test_a_path_that_is_no_file_is_one_line_and_2(path: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", path]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("raise ValueError('no data')", "the script raised ValueError: no data (train.py:13)"),
        ("raise SystemExit(3)", "the script ended with exit status 3"),
        ("import os; os._exit(7)", "the script terminated its process (exit status 7)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "the script was killed by SIGKILL"),
    ],
)
def test_a_script_that_fails_is_one_line_and_2(ending: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = verify(LOOP + ending + "\n", capfd)
    assert status == 2
    assert (out + err).count(message) == 1
    assert err.count("Traceback") == ending.startswith("raise ValueError")


@pytest.mark.slow
@pytest.mark.parametrize("room", ["measure.expected_weights", "judge.observed_run"])
def test_a_crash_of_our_own_is_told_as_ours(room: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(f"import gradcheck_accum.verify.{room} as room\nroom.fold = len\n" + LOOP)
    assert main(["verify", "train.py"]) == 2
    assert "train.py: internal error of gradcheck-accum, please report it: TypeError" in capfd.readouterr().err


@pytest.mark.slow
def test_a_script_that_fails_still_shows_what_was_seen(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, _ = verify(LOOP + "raise ValueError('no data')\n", capfd, "--output-format", "json")
    report = json.loads(out)
    assert status == 2
    assert len(report["windows"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["import sys; sys.exit()", "raise SystemExit(0)", "import os; os.chdir('/')"])
def test_a_script_may_end_itself_and_change_directory(ending: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, _ = verify(LOOP + ending + "\n", capfd)
    assert status == 0
    assert "equivalent: all 2 steps" in out


@pytest.mark.slow
def test_a_script_that_counts_its_operations_is_judged_and_counts_its_own_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    counter = "from torch.utils.flop_counter import FlopCounterMode\ncounter = FlopCounterMode(display=False)\n"
    counted = LOOP + "import sys\nprint('counted', counter.get_total_flops())\n"
    source = counter + "with counter:\n    " + "    ".join(counted.splitlines(keepends=True))
    status, out, err = verify(source, capfd, "--verbose")
    assert status == 0
    assert "equivalent: all 2 steps" in out
    assert "replay (the window's data as one large batch)" in out
    # Four micro-batches of 4 rows by 3 inputs by 2 outputs, 2 operations each: forward, and backward to the weights.
    assert f"counted {4 * 2 * (4 * 3 * 2 * 2)}" in err


@pytest.mark.slow
def test_a_script_that_forks_is_judged_once(capfd: pytest.CaptureFixture[str]) -> None:
    fork = "import os\nif os.fork() == 0:\n    raise SystemExit(5)\nos.wait()\n"
    status, out, _ = verify("import torch\n" + fork + LOOP, capfd)
    assert status == 0
    assert out.count("equivalent: all 2 steps") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("print('no training here')\n", "no backward() and no optimizer.step() was observed"),
        (LOOP.replace("optimizer.step()", "pass"), "optimizer.step() was never called"),
        (LOOP.replace("loss.backward()", "pass"), "no gradient was computed for this step"),
    ],
)
def test_nothing_to_compare_is_inconclusive_with_the_reason(
    source: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = verify(source, capfd)
    assert status == 3
    assert "inconclusive: " in out
    assert reason in out


@pytest.mark.slow
def test_a_script_that_hangs_is_stopped(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = verify("while True:\n    pass\n", capfd, "--timeout", "6")
    assert status == 2
    assert "did not end within 6 s" in err
    assert out == ""


@pytest.mark.slow
def test_the_report_is_of_what_was_seen_when_the_time_ran_out(capfd: pytest.CaptureFixture[str]) -> None:
    _, out, _ = verify(LOOP + "while True:\n    pass\n", capfd, "--timeout", "20")
    assert "2 windows watched" in out
    assert "stopped before the script ended" in out


@pytest.mark.slow
def test_the_scripts_own_output_and_arguments_are_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    source = LOOP + "import sys\nprint('arguments', sys.argv[1:], __name__)\n"
    status, out, err = verify(source, capfd, "--output-format", "json", "--", "--epochs", "3")
    assert status == 0
    assert json.loads(out)["verdict"] == "equivalent"
    assert "arguments ['--epochs', '3'] __main__" in err


@pytest.mark.slow
def test_modules_beside_the_script_are_found_and_a_name_of_the_standard_library_does_no_harm() -> None:
    Path("random.py").write_text("raise ImportError('mine')\n")
    Path("helper.py").write_text("K = 2\n")
    Path("train.py").write_text("from helper import K\n" + LOOP)
    assert verify_script("train.py").error == ""


def test_watching_leaves_random_numbers_buffers_and_results_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    source = LOOP.replace("nn.Linear(3, 2)", "nn.Sequential(nn.Dropout(0.3), nn.BatchNorm1d(3), nn.Linear(3, 2))") + (
        "state = b''.join(t.detach().numpy().tobytes() for t in model.state_dict().values())\n"
        "import hashlib, numpy, random, sys\n"
        "drawn = torch.rand(1).item(), numpy.random.rand(), random.random()\n"
        "print('state', hashlib.sha256(state).hexdigest(), drawn, file=sys.stderr)\n"
    )
    source = "import numpy, random\nnumpy.random.seed(1); random.seed(1)\n" + source
    _, _, watched = verify(source, capfd)
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=True).stderr
    assert plain.startswith("state ")
    assert plain in watched


@pytest.mark.slow
@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_a_device_that_cannot_be_used_is_one_line_and_2(device: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = verify(LOOP, capfd, "--device", device)
    assert (status, out) == (2, "")
    assert f"device {device} cannot be used" in err
    assert err.count("\n") == 1


class Terminal(io.StringIO):
    """A stream that is a terminal, or not."""

    def __init__(self, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


@pytest.mark.parametrize("tty", [True, False])
def test_a_long_run_shows_on_a_terminal_how_far_it_is(tty: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 4.0, 11.0, 12.0, 25.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    stream = Terminal(tty)
    progress = _Progress(stream)
    for step in range(1, 5):
        progress(step)
    lines = ["gradcheck-accum: 2 windows watched in 11 s", "gradcheck-accum: 4 windows watched in 25 s"]
    assert stream.getvalue().splitlines() == (lines if tty else [])


def test_the_progress_of_a_run_is_told_after_every_step(tmp_path: Path) -> None:
    told: list[int] = []
    with observe(on_step=told.append):
        exec(compile(LOOP, "train.py", "exec"), {})
    assert told == [1, 2]
