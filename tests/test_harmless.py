"""What a script does, says and leaves behind is the same under verify as without it, byte for byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from gradcheck_accum.cli import main
from gradcheck_accum.verify import observe

TRAINING = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.3), nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(5, 3), torch.randint(0, 2, (5,))) for _ in range(6)]
def train():
    for i, (x, y) in enumerate(batches):
        loss = nn.functional.cross_entropy(model(x), y) / 3
        loss.backward()
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

FAILS_WHILE_A_THREAD_RUNS = (
    TRAINING
    + """
import atexit, os, pickle, sys, threading, warnings

class Mine:
    pass

def last_words():
    # What is pickled by name has to be found in the program itself.
    pickle.loads(pickle.dumps(Mine()))
    weights = [value.tolist() for value in model.state_dict().values()]
    with open("left.txt", "w") as file:
        print(weights, torch.rand(1).item(), file=file)
    print("exit handler", threading.main_thread().is_alive(), file=sys.stderr)

atexit.register(last_words)
print(__file__, __name__, __spec__, sys.argv, sys.path, os.environ.get("PYTHONPATH"), file=sys.stderr)
print(__builtins__, sys.modules["__main__"].Mine is Mine, file=sys.stderr)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
schedule.step()
nn.functional.mse_loss(model(batches[0][0]), torch.randn(5, 1))
nn.functional.softmax(model(batches[0][0]))
model(batches[0][0]).unsqueeze(0).T
warnings.warn("mine", stacklevel=2)
train()
main_is_over = threading.main_thread().join

def finish():
    main_is_over()
    train()
    print("thread has ended", file=sys.stderr)

threading.Thread(target=finish).start()

def deep():
    try:
        nn.functional.cross_entropy(model(torch.randn(4, 5)), torch.zeros(4).long())
    except RuntimeError as error:
        error.__dict__.setdefault("__notes__", []).append("a note")
        raise ValueError("in two\\nlines") from error

deep()
"""
)

HAS_HOOKS_OF_ITS_OWN = (
    TRAINING
    + """
import multiprocessing, signal, sys, threading, time

def hook(kind, value, traceback):
    print("hook", kind.__name__, value, traceback.tb_frame.f_code.co_name, traceback.tb_next, file=sys.stderr)
    raise KeyError("of the hook")

sys.excepthook = hook
threading.excepthook = lambda args: print("thread hook", args.exc_type.__name__, file=sys.stderr)
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
if __name__ == "__main__":
    train()
    child = multiprocessing.get_context("fork").Process(target=signal.pause)
    child.start()
    child.terminate()
    child.join()
    print("child", child.exitcode, file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: print("own handler", file=sys.stderr))
    signal.raise_signal(signal.SIGTERM)
    raise OSError("no more")
"""
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def both_ways(
    source: str, capfd: pytest.CaptureFixture[str], *options: str
) -> tuple[tuple[int, str, str], tuple[int, str, str]]:
    """Exit status, output and error output of a script by itself, and of verify on it; what both leave is the same."""
    Path("train.py").write_text(source)
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True)
    left = {path.name: path.read_bytes() for path in Path().glob("left*")}
    for name in left:
        os.remove(name)
    status = main(["verify", "train.py", "--output-format", "json", *options])
    out, err = capfd.readouterr()
    assert {path.name: path.read_bytes() for path in Path().glob("left*")} == left
    return (plain.returncode, plain.stdout, plain.stderr), (status, out, err)


def own_words(err: str) -> str:
    """Standard error without our own line about the error."""
    return "".join(line for line in err.splitlines(keepends=True) if not line.startswith("gradcheck-accum: "))


@pytest.mark.slow
def test_exit_handlers_threads_warnings_and_tracebacks_are_the_scripts_own(capfd: pytest.CaptureFixture[str]) -> None:
    plain, watched = both_ways(FAILS_WHILE_A_THREAD_RUNS, capfd)
    assert plain[0] == 1
    assert "thread has ended\nexit handler False" in plain[2]
    assert "ValueError: in two\nlines\n" in plain[2]
    assert own_words(watched[2]) == plain[2]
    report = json.loads(watched[1])
    assert watched[0] == 2
    raised = next(n for n, line in enumerate(FAILS_WHILE_A_THREAD_RUNS.splitlines(), 1) if "raise ValueError" in line)
    assert report["error"] == f"the script raised ValueError: in two (train.py:{raised})"
    # Two windows of the script's own, and two of the thread that outlives it.
    assert [window["micro_batches"] for window in report["windows"]] == [3, 3, 3, 3]


@pytest.mark.slow
def test_hooks_and_handlers_of_the_script_are_called_as_python_calls_them(capfd: pytest.CaptureFixture[str]) -> None:
    plain, watched = both_ways(HAS_HOOKS_OF_ITS_OWN, capfd)
    for said in ("thread hook ZeroDivisionError", "child -15", "own handler", "hook OSError no more <module> None"):
        assert said in plain[2]
    assert own_words(watched[2]) == plain[2]


@pytest.mark.slow
def test_a_message_that_the_script_ends_with_is_its_last_word(capfd: pytest.CaptureFixture[str]) -> None:
    plain, watched = both_ways(TRAINING + "train()\nimport sys\nsys.exit('no more\\ndata')\n", capfd)
    assert plain[::2] == (1, "no more\ndata\n")
    assert own_words(watched[2]) == plain[2]
    assert json.loads(watched[1])["error"] == "the script ended with exit status 1 (no more)"


def test_a_syntax_error_is_shown_as_python_shows_it(capfd: pytest.CaptureFixture[str]) -> None:
    Path("part.py").write_text("x = (1\n")
    plain, watched = both_ways("import part\n", capfd)
    assert "SyntaxError" in plain[2]
    assert own_words(watched[2]) == plain[2]
    assert "the script is not Python" in json.loads(watched[1])["error"]


@pytest.mark.slow
@pytest.mark.parametrize("interrupts", ["default_int_handler", "SIG_IGN"])
def test_a_thread_that_waits_for_the_rest_of_a_script_that_was_stopped_is_not_waited_for(
    interrupts: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A shell starts what runs in its background with interrupts ignored."""
    source = (
        "import atexit, signal, sys, threading\n"
        f"signal.signal(signal.SIGINT, signal.{interrupts})\n"
        "import gradcheck_accum.verify.process.child as child\n"
        "child._PATIENCE = 2.0\n"
        "atexit.register(lambda: print('exit handler', file=sys.stderr))\n"
        "done = threading.Event()\n"
        "threading.Thread(target=done.wait).start()\n"
    )
    Path("train.py").write_text(source + TRAINING + "train()\ndone.set()\n")
    assert main(["verify", "train.py", "--max-windows", "1"]) == 3
    out, err = capfd.readouterr()
    assert "1 window watched" in out
    assert err == "exit handler\n"


@pytest.mark.slow
def test_what_asks_for_the_end_of_a_thread_that_never_ends_gets_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    source = (
        "import os, signal, threading\n"
        "def linger():\n"
        "    threading.main_thread().join()\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=linger).start()\n"
    )
    Path("train.py").write_text(TRAINING + "train()\n" + source)
    main(["verify", "train.py"])
    out, _ = capfd.readouterr()
    assert "2 windows watched" in out
    assert "stopped before the script ended" in out


def test_a_warning_is_that_of_the_users_line_and_module_and_comes_once() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(5, 3), torch.randn(5, 1)
    with warnings.catch_warnings(record=True) as caught, observe():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", module=__name__.replace(".", r"\."))
        for i in range(6):
            (mse_loss(model(x), y) / 3).backward()
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
    assert [(w.filename, w.lineno - caught[0].lineno) for w in caught] == [(__file__, 0)] * 6
    assert "mse_loss(model(x), y)" in Path(__file__).read_text().splitlines()[caught[0].lineno - 1]


def test_a_warning_that_is_an_error_is_raised_where_it_would_be() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    with warnings.catch_warnings(), observe():
        warnings.filterwarnings("error", module=__name__.replace(".", r"\."))
        with pytest.raises(UserWarning, match="Detected call of"):
            schedule.step()
    assert warnings.warn is sys.modules["_warnings"].warn


def test_what_python_was_asked_about_warnings_holds_for_the_script(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "warnoptions", ["error::UserWarning"])
    Path("train.py").write_text("import warnings\nwarnings.warn('mine')\n")
    assert main(["verify", "train.py", "--output-format", "json"]) == 2
    assert json.loads(capfd.readouterr().out)["error"] == "the script raised UserWarning: mine (train.py:2)"


HOOKED = """\
import random
from collections import deque
import numpy
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
means, last, calls = [], {}, 0

class Meter:
    def __init__(self):
        self.rows, self.sizes, self.mean = 0, [], torch.zeros(5)
    def __call__(self, module, given, result):
        self.rows += len(result)
        self.sizes.append(len(result))
        self.mean.mul_(0.9).add_(0.1 * result.detach().mean(0))

def keep(into):
    seen = 0
    def hook(module, given, result):
        nonlocal seen
        seen += 1
        into["output"], into["seen"] = result.detach(), seen
    return hook

def count(module, given):
    global calls
    calls += 1

class Owner:
    def __init__(self):
        self.tally, self.lately = Tally(), deque(maxlen=3)
    def hook(self, module, given, result):
        self.tally.number += 1
        self.lately.append(len(result))

class Tally:
    number = 0

def remember(module, given, result, sizes=[]):
    sizes.append(len(result))
    remember.calls += 1

remember.calls = 0
meter, owner = Meter(), Owner()
model[0].register_forward_hook(owner.hook)
model[1].register_forward_hook(remember)
model[0].register_forward_hook(meter)
model[1].register_forward_hook(keep(last))
model[1].register_forward_hook(lambda module, given, result: means.append(result.mean().item()))
model[2].register_forward_pre_hook(count)
model[2].register_full_backward_hook(lambda module, given, result: means.append(given[0].sum().item()))
random.seed(1)
numpy.random.seed(1)
def draws(module, given, result):
    random.random(), numpy.random.rand()
    module.register_forward_hook(lambda *_: None)
model[2].register_forward_hook(draws)
without_module = {"seen": []}
exec("def hook(module, given, result): seen.append(len(result))", without_module)
without_module["hook"].__module__ = None
model[0].register_forward_hook(without_module["hook"])
for i in range(6):
    (nn.functional.cross_entropy(model(torch.randn(4, 6)), torch.randint(0, 2, (4,))) / 2).backward()
    if i % 2 == 1:
        optimizer.step()
        optimizer.zero_grad()
        print(last["output"].shape, last["seen"], calls, meter.rows, meter.sizes, meter.mean.tolist(), means)
        print(owner.tally.number, owner.lately, remember.__defaults__, remember.calls)
        print(random.random(), numpy.random.rand(), len(model[2]._forward_hooks), without_module["seen"])
"""


def test_what_hooks_collect_and_count_is_that_of_the_loops_own_calls(tmp_path: Path) -> None:
    (tmp_path / "hooked.py").write_text(HOOKED, encoding="utf-8")
    verify = [sys.executable, "-m", "gradcheck_accum", "verify", "--reference", "both", "hooked.py"]
    plain, watched = (
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        for command in ([sys.executable, "hooked.py"], verify)
    )
    assert len(plain.stdout.splitlines()) == 9
    assert plain.stdout in watched.stdout + watched.stderr
