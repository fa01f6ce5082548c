"""compare starts its runs as copies of one process where it can: a script must not be able to tell.

A configuration with a variable of its own is started by itself, as all are where copies are not safe.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gradcheck_accum.comparing import compare_script

pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.slow]

SEES = """\
import atexit, gc, inspect, json, multiprocessing, os, random, resource, signal, sys, threading, warnings

sees = {
    "arguments": sys.argv[:-1],
    "path": sys.path,
    "environment": {name: value for name, value in os.environ.items() if name != "ALONE"},
    "folder": os.getcwd(),
    "handlers": {int(one): str(signal.getsignal(one)).partition(" at ")[0] for one in signal.valid_signals()},
    "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    "threads": [thread.name for thread in threading.enumerate()],
    "main thread": threading.main_thread().native_id == os.getpid(),
    "files": sorted(number for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")),
    "modules": sorted(name for name in sys.modules if name != "gradcheck_accum.verify.process.fork_server"),
    "filters": [str(one) for one in warnings.filters],
    "exit handlers": atexit._ncallbacks(),
    "start method": multiprocessing.get_start_method(allow_none=True),
    "parent": str(multiprocessing.parent_process()),
    "flags": str(sys.flags),
    "stack": [frame.function for frame in inspect.stack()],
    "group": [os.getpgrp(), os.getsid(0)],
    "limits": [resource.getrlimit(value) for name, value in vars(resource).items() if name.startswith("RLIMIT_")],
    "output": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.isatty(), sys.stdin.fileno()],
    "name": [__name__, __file__, sys.executable, sys.orig_argv[:2], str(sys.excepthook)],
    "collector": [gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()],
    "rights": os.umask(0o022),
    "drawn": random.random(),
}
import torch

sees |= {"seed": torch.initial_seed(), "drawn by torch": torch.rand(()).item(), "threads": torch.get_num_threads()}
with open(sys.argv[-1], "w") as file:
    json.dump([os.getppid(), sees], file)
"""
LOOP = """
import sys, torch
batch, steps = map(int, sys.argv[1:3])
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, x in enumerate(torch.randn(24, 4).split(batch)):
    (model(x).pow(2).mean() / steps).backward()
    if (i + 1) % steps == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
PARENT = """
import os, sys
open(sys.argv[3], "w").write(str(os.getppid()))
"""


def compared(source: str, *, before: list[str] | None = None) -> Any:
    """The result for a script in two configurations, each of which ends with a file of its own."""
    Path("train.py").write_text(source)
    first, second = ([*(before or []), *words] for words in (["4", "2", "first"], ["8", "1", "second"]))
    return compare_script("train.py", [first, second])


@pytest.mark.skipif(
    sys.platform != "linux" or torch.version.cuda is not None, reason="runs are copied on Linux, without devices"
)
def test_a_script_sees_the_same_process_as_without_copies() -> None:
    assert compared(SEES + LOOP).verdict.value == "equivalent"
    copied = [json.loads(Path(name).read_text()) for name in ("first", "second")]
    assert compared(SEES + LOOP, before=["env", "ALONE=1"]).verdict.value == "equivalent"
    alone = [json.loads(Path(name).read_text()) for name in ("first", "second")]
    for (_, mine), (_, expected) in zip(copied, alone, strict=True):
        assert mine == expected
    assert copied[0][0] == copied[1][0] != os.getpid()
    assert alone[0][0] == alone[1][0] == os.getpid()


@pytest.mark.parametrize(
    "customized",
    [
        "import sys\nsys.setprofile(lambda *_: None)",
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
    ],
    ids=["profiled", "thread"],
)
def test_what_runs_in_every_process_is_not_copied(customized: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("site").mkdir()
    Path("site/sitecustomize.py").write_text(customized)
    monkeypatch.setenv("PYTHONPATH", str(Path("site").resolve()))
    assert compared(PARENT + LOOP).verdict.value == "equivalent"
    assert {Path(name).read_text() for name in ("first", "second")} == {str(os.getpid())}


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os.kill(os.getpid(), 9)", "the script was killed by SIGKILL"),
        ("os._exit(7)", "the script terminated its process (exit status 7) before a verdict could be given"),
    ],
    ids=["killed", "exits"],
)
def test_how_a_copy_ends_is_said(end: str, said: str) -> None:
    result = compared(f"import os, sys\nif sys.argv[2] == '2':\n    {end}\n" + LOOP)
    assert said in (result.error or "")
