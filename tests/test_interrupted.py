"""Who stops verify or compare in the middle of a run gets a report of what was seen, and nothing is left behind."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from gradcheck_accum.comparing import compared_loop

pytestmark = pytest.mark.usefixtures("elsewhere")

Start = Callable[..., "subprocess.Popen[str]"]

ENDLESS = """\
import itertools
import os
import sys
import torch

batch, accum = map(int, sys.argv[1:])
torch.manual_seed(3)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(45, 4), torch.randint(0, 3, (45,)))
steps = itertools.count(1)
while True:
    for i, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=batch)):
        (torch.nn.functional.cross_entropy(model(x), y) / accum).backward()
        if (i + 1) % accum == 0:
            optimizer.step()
            optimizer.zero_grad()
            if next(steps) == 4:
                os.write(1, b"in the midst\\n")  # at once: two processes write here
"""
COMMANDS = {
    "verify": ["verify", "--reference", "ledger", "train.py", "--", "5", "3"],
    "compare": ["compare", "train.py", "--with", "5 3", "--with", "15 1"],
}


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a command whose process takes SIGINT in some way, whatever pytest itself was started with."""
    running = []

    def started(*command: str, interrupts: signal.Handlers = signal.SIG_DFL) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "gradcheck_accum", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, interrupts),
        )
        running.append(process)
        return process

    yield started
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ended(started: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit status, standard output and standard error; no process and no file is left."""
    out, err = started.communicate(timeout=60)
    # What ends closes its streams, which we read to their end, a moment before the system takes it off its list.
    until = time.monotonic() + 60
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < until:
            os.killpg(started.pid, 0)
    assert not list(Path(os.environ["TMPDIR"]).glob("gradcheck-accum-*"))
    # An interrupt that reaches a callback which cannot raise is shown by Python itself; the next one ends the script.
    return started.returncode, out, re.sub(r"(?ms)^Exception ignored .*?^KeyboardInterrupt: *$\n?", "", err)


@pytest.mark.parametrize(
    ("command", "number", "whole_group"),
    [
        pytest.param(
            command,
            number,
            whole,
            marks=pytest.mark.slow if (number is signal.SIGTERM) is whole else pytest.mark.thorough,
            id=f"{command}-{number.name}-{'and its processes' if whole else 'it alone'}",
        )
        for command in COMMANDS
        for number in (signal.SIGINT, signal.SIGTERM)
        for whole in (False, True)
    ],
)
def test_in_the_midst_of_a_run_the_report_is_of_what_was_seen(
    command: str, number: signal.Signals, whole_group: bool, start: Start
) -> None:
    Path("train.py").write_text(ENDLESS)
    started = start(*COMMANDS[command])
    assert started.stderr is not None
    assert started.stderr.readline() == "in the midst\n"
    if whole_group:
        os.killpg(started.pid, number)
    else:
        started.send_signal(number)
    status, out, err = ended(started)
    assert status == 0, err
    assert out.startswith("train.py: equivalent: all ")
    assert "stopped before the script ended" in " ".join(out.split())
    assert err.strip() in ("", "in the midst")  # of the other configuration


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_in_the_background_of_a_shell_where_interrupts_are_ignored(command: str, start: Start) -> None:
    Path("train.py").write_text(ENDLESS)
    started = start(*COMMANDS[command], interrupts=signal.SIG_IGN)
    assert started.stderr is not None
    assert started.stderr.readline() == "in the midst\n"
    started.send_signal(signal.SIGTERM)
    status, out, err = ended(started)
    assert status == 0, err
    assert out.startswith("train.py: equivalent: all ")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_before_anything_was_compared_it_is_one_line(number: signal.Signals, start: Start) -> None:
    Path("train.py").write_text("import sys\nprint('begun', flush=True)\nimport threading\nthreading.Event().wait()")
    started = start(*COMMANDS["compare"])
    assert started.stderr is not None
    assert started.stderr.readline() == "begun\n"
    started.send_signal(number)
    status, out, err = ended(started)
    said = "gradcheck-accum: train.py: interrupted before any step was compared\n"
    # The copies of the script write at once: the ends of their lines may come apart.
    assert (status, out, err.replace("begun", "").lstrip("\n")) == (2, "", said)


def test_a_comparison_inside_a_program_ends_its_copies_and_leaves_the_interrupt_to_the_program() -> None:
    program = os.getpid()

    def endless(batch: int, accumulation_steps: int) -> None:
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.ones(15, 4), torch.zeros(15, dtype=torch.long)
        for step in itertools.count():
            for rows in torch.arange(15).split(batch):
                (torch.nn.functional.cross_entropy(model(x[rows]), y[rows]) / accumulation_steps).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 2 and accumulation_steps == 1:
                os.kill(program, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            compared_loop(endless, [dict(batch=5, accumulation_steps=3), dict(batch=15, accumulation_steps=1)])
    finally:
        signal.signal(signal.SIGINT, before)
    assert multiprocessing.active_children() == []
    assert not list(Path(os.environ["TMPDIR"]).glob("gradcheck-accum-*"))
