"""verify on scripts that do what scripts should not: an honest verdict or one clear line, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradcheck_accum.cli import main

pytestmark = pytest.mark.usefixtures("elsewhere")

LOOP = """
import os, sys
import torch

def train():
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(6):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(5, 4)), torch.randint(0, 3, (5,)))
        (loss / 3).backward()
        if i == 3:
            in_the_midst()
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()

def in_the_midst():
    pass
"""
"""A right loop: 3 micro-batches of 5 rows, two windows."""

RIGHT = "equivalent"
STOPPED = "stopped before the script ended"
OVERLAP = "several threads train at the same time"
ENDS_ITSELF = "the script terminated its process (exit status {}) before a verdict could be given"

SCRIPTS = {
    "kills itself": (
        "import signal\ndef in_the_midst(): os.kill(os.getpid(), signal.SIGKILL)\ntrain()",
        "the script was killed by SIGKILL",
    ),
    "leaves without a word": ("def in_the_midst(): os._exit(0)\ntrain()", ENDS_ITSELF.format(0)),
    "aborts": ("def in_the_midst(): os.abort()\ntrain()", "the script was killed by SIGABRT"),
    "becomes another program": (
        "def in_the_midst(): os.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(7)'])\ntrain()",
        ENDS_ITSELF.format(7),
    ),
    "closes its streams": ("os.close(1); os.close(2); sys.stdout.close(); train()", RIGHT),
    "has no streams": ("sys.stdout = sys.stderr = sys.stdin = None; train()", RIGHT),
    "takes exit handlers away": (
        "import atexit\ndef in_the_midst():\n    atexit._clear(); atexit.register = atexit.unregister = None\n"
        "    sys.exit = sys.excepthook = os._exit = None\ntrain()",
        RIGHT,
    ),
    "goes elsewhere and deletes all behind it": (
        "def in_the_midst():\n    os.remove(__file__); os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
        "    sys.argv = None; os.environ.clear(); sys.path[:] = []\ntrain()",
        RIGHT,
    ),
    "deletes all temporary files": (
        "import glob, shutil, tempfile\ntrain()\n"
        "for folder in glob.glob(tempfile.gettempdir() + '/*'): shutil.rmtree(folder)",
        ENDS_ITSELF.format(0),
    ),
    "puts its own in the place of PyTorch's": (
        "backward, step = torch.autograd.backward, torch.optim.SGD.step\n"
        "torch.autograd.backward = lambda *a, **k: backward(*a, **k)\n"
        "torch.optim.SGD.step = lambda self, *a: step(self, *a)\n"
        "torch.set_grad_enabled(True); torch.use_deterministic_algorithms(True); train()",
        RIGHT,
    ),
    "raises what cannot be shown": (
        "class Worse(Exception):\n    def __str__(self): raise self\n    __repr__ = __str__\n"
        "def in_the_midst(): raise Worse\ntrain()",
        "the script raised Worse",
    ),
    "ends with what cannot be shown": (
        "class Worse:\n    def __str__(self): raise ValueError\n    __repr__ = __str__\n"
        "def in_the_midst(): raise SystemExit(Worse())\ntrain()",
        "the script ended with exit status 1",
    ),
    "has little room for calls": ("train(); sys.setrecursionlimit(60)", RIGHT),
    "forgets its modules": (
        "train()\nfor name in list(sys.modules):\n    if name.startswith('gradcheck_accum'): del sys.modules[name]",
        RIGHT,
    ),
    "may open no file": (
        "import resource\ntrain(); resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
        ENDS_ITSELF.format(0),
    ),
    "asks for its own end": (
        "import signal\ndef in_the_midst(): os.kill(os.getpid(), signal.SIGTERM)\ntrain()",
        STOPPED,
    ),
    "trains in two threads at the same time": (
        "import threading\nother, drawn = threading.Thread(target=train), torch.randn\n"
        "def meanwhile(gradient):\n    if other.ident is None: other.start(); other.join()\n"
        "def draw(*sizes):\n    x = drawn(*sizes, requires_grad=True)\n    x.register_hook(meanwhile); return x\n"
        "torch.randn = draw\ntrain()",
        OVERLAP,
    ),
    "trains in one thread after another": (
        "import threading\nfor _ in range(2):\n    one = threading.Thread(target=train); one.start(); one.join()",
        RIGHT,
    ),
    "has a JSON of its own": ("import json\njson.dumps = json.loads = lambda value: value\ntrain()", RIGHT),
    "prints into nothing": (
        "class Full:\n    def write(self, text): raise OSError('no space left')\n"
        "sys.stdout = sys.stderr = Full()\ntrain()",
        RIGHT,
    ),
    "traces and profiles itself": (
        "lines = []\ndef tracer(frame, event, argument):\n    lines.append(frame.f_lineno); return tracer\n"
        "sys.settrace(tracer); sys.setprofile(lambda *seen: None); train(); assert lines",
        RIGHT,
    ),
    "has a hook for exceptions that raises": (
        "def hook(*raised): raise RuntimeError\nsys.excepthook = hook\ndef in_the_midst(): raise LookupError\ntrain()",
        "the script raised LookupError",
    ),
    "raises where objects die": (
        "class Dying:\n    def __del__(self): raise RuntimeError\ndef in_the_midst(): Dying()\ntrain(); kept = Dying()",
        RIGHT,
    ),
    "is interrupted by its own alarm all the time": (
        "import signal\nsignal.signal(signal.SIGALRM, lambda *of: None)\n"
        "signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3); train()",
        RIGHT,
    ),
    "is ended by its own alarm": (
        "import signal\ndef in_the_midst(): signal.raise_signal(signal.SIGALRM)\ntrain()",
        "the script was killed by SIGALRM",
    ),
    "is two processes, and both go on": (
        "def in_the_midst():\n    if not os.fork(): sys.exit = None\ntrain()",
        RIGHT,
    ),
    "leaves in another thread": (
        "import threading\ndef in_the_midst():\n    one = threading.Thread(target=os._exit, args=(3,))\n"
        "    one.start(); one.join()\ntrain()",
        ENDS_ITSELF.format(3),
    ),
    "closes the files that it has not opened": ("def in_the_midst(): os.closerange(3, 4096)\ntrain()", RIGHT),
    "lets nobody read what it writes": ("os.umask(0o777); train()", RIGHT),
    "hears no signals and forks": (
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "def in_the_midst():\n    if os.fork() == 0: os._exit(5)\n    os.wait()\ntrain()",
        RIGHT,
    ),
}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.thorough] if number % 3 else [pytest.mark.slow])
        for number, (name, case) in enumerate(SCRIPTS.items())
    ],
)
def test_a_verdict_or_one_clear_line(
    script: str, said: str, elsewhere: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = Path("train.py")
    path.write_text(LOOP + script + "\n")
    status = main(["verify", "--reference", "ledger", str(path)])
    out, err = capfd.readouterr()
    assert said in out + err
    assert status == {RIGHT: 0, STOPPED: 0, OVERLAP: 3}.get(said, 2)
    ours = [line for line in err.splitlines() if "gradcheck_accum" in line or "internal error" in line]
    assert not ours, err
    assert not list(elsewhere.glob("gradcheck-accum*"))


@pytest.mark.parametrize("asked", ["by a time limit", "by a person"])
def test_who_stops_it_before_the_script_begins_gets_one_line(asked: str, capfd: pytest.CaptureFixture[str]) -> None:
    """PyTorch takes seconds to load."""
    Path("train.py").write_text("import time\ntime.sleep(60)\n")
    if asked == "by a time limit":
        for limit in ("0.05", "0.4"):
            assert main(["verify", "--timeout", limit, "train.py"]) == 2
            said = f"gradcheck-accum: train.py: the script did not end within {limit} s\n"
            assert capfd.readouterr().err == said
        return
    verify = subprocess.Popen(
        [sys.executable, "-m", "gradcheck_accum", "verify", "train.py"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = Path(f"/proc/{verify.pid}/task/{verify.pid}/children")
    if not children.exists():
        verify.kill()
        pytest.skip("the system does not show a process's children")
    deadline = time.monotonic() + 60
    while not children.read_text().strip() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(verify.pid, signal.SIGINT)
    _, err = verify.communicate(timeout=60)
    assert err in ("", "gradcheck-accum: train.py: interrupted before anything was seen\n")
    assert verify.returncode in (2, 130)
