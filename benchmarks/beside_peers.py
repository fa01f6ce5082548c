"""The same loops under lint and verify, other tools, and a comparison that one would write by hand.

    python benchmarks/beside_peers.py [--repeats 3] [--peers PATH/TO/python]

Needs pytest-torch, torch-audit, torch-preflight, TorchFix and TrainCheck, best in an environment of their own, whose
Python is ``--peers`` (they ask for another version of libcst): what is not there is left out. Each loop is a script; a
tool that has to be called in it is, after the line that makes the optimizer, and pytest-torch gets it as a step
function. TrainCheck gets one pass over the data, and first learns from the right loop with other random numbers. A tool
has seen a mistake if it says of the wrong loop what it does not say of the right one. Time is that of the processor, of
the whole process and all that it starts; memory is the highest resident one of any process; both medians, relative to
the plain script's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gradcheck_accum.results.verdict import Verdict

K, ROWS, BATCHES, EPOCHS = 4, 8, 14, 10

LOOP = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
K = {k}
model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
{watch}data = [(torch.randn({rows}, 64), torch.randint(10, ({rows},))) for _ in range({batches})]
for _ in range({epochs}):
    for i, (x, y) in enumerate(data):
        loss = nn.functional.cross_entropy(model(x), y)
{body}
{end}"""

STEPS = """\
import torch
from pytest_torch.training_loop import TrainingSetup, assert_accumulation_equivalent
from torch import nn

torch.set_num_threads(1)


def make_setup():
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
    return TrainingSetup(model, torch.optim.SGD(model.parameters(), lr=0.01))


def make_step(K):
    def step(setup, batch):
        model, optimizer, i = setup.model, setup.optimizer, setup.step_index
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
{body}
        return loss

    return step


batch = torch.randn({window}, 64), torch.randint(10, ({window},))
try:
    assert_accumulation_equivalent(make_setup, batch, make_step, accumulation_steps={k})
except AssertionError as error:
    print(str(error).splitlines()[0])
"""

RIGHT = """\
(loss / K).backward()
if (i + 1) % K == 0:
    optimizer.step()
    optimizer.zero_grad()
"""

FLUSHED = """\
    if len(data) % K:
        for p in model.parameters():
            p.grad *= K / (len(data) % K)
        optimizer.step()
        optimizer.zero_grad()
"""

LOOPS = {
    "right": (RIGHT, FLUSHED),
    "no loss scaling": (RIGHT.replace("(loss / K)", "loss"), ""),
    "cleared every micro-batch": (RIGHT.replace("(loss", "optimizer.zero_grad()\n(loss"), FLUSHED),
    "never cleared": (RIGHT.replace("    optimizer.zero_grad()\n", ""), ""),
    "step every micro-batch": ("(loss / K).backward()\noptimizer.step()\noptimizer.zero_grad()\n", ""),
    "off by one": (RIGHT.replace("(i + 1) % K", "i % K"), ""),
    "remainder dropped": (RIGHT, "    optimizer.zero_grad()\n"),
}

BY_HAND = """\
steps = []


def compare(optimizer, args, kwargs):
    window = data[len(steps) * K : (len(steps) + 1) * K]
    if len(steps) == 2 or not window:
        return
    used = [p.grad.clone() for p in model.parameters()]
    large = nn.functional.cross_entropy(model(torch.cat([x for x, _ in window])), torch.cat([y for _, y in window]))
    wanted = torch.autograd.grad(large, list(model.parameters()))
    steps.append(all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(used, wanted)))


optimizer.register_step_pre_hook(compare)
"""

AUDITED = """\
from torch_audit import autopatch

auditor = autopatch(model, optimizer=optimizer, every_n_steps=1, reporters=[], fail_level="FATAL")
"""


LEARNING = """\
import json
import shutil
import subprocess
import sys
from pathlib import Path


def call(module, *given):
    program = f"from traincheck.{module} import main; main()"
    done = subprocess.run([sys.executable, "-c", program, *given], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)


def traced(name, *given):
    shutil.rmtree(f"{name}_traced", ignore_errors=True)
    call("collect_trace", "-p", f"{name}.py", "--models-to-track", "model", "--output-dir", f"{name}_traced", *given)
    return f"{name}_traced"


known, name = "invariants.json", Path(sys.argv[1]).stem
if not Path(known).exists():
    right = Path("right.py").read_text()
    Path("learned.py").write_text(right.replace("manual_seed(0)", "manual_seed(1)"))
    call("infer_engine", "-f", traced("learned"), "-o", known)
run = traced(name, "-i", known)
shutil.rmtree(f"{name}_checked", ignore_errors=True)
call("checker", "-f", run, "-i", known, "-o", f"{name}_checked", "--no-html-report")
for path in Path(f"{name}_checked").rglob("violations_summary.json"):
    for own in json.loads(path.read_text())["violations"]:
        print(own["display_name"])
"""


@dataclass(frozen=True)
class Ran:
    """What one process said and took: seconds of the processor, and bytes."""

    said: str
    seconds: float
    memory: int


@dataclass(frozen=True)
class Tool:
    """How a tool is run on the text of a loop, and what it found in what it printed."""

    name: str
    needs: str
    text: Callable[[str, str], str]
    command: tuple[str, ...]
    found: Callable[[str], set[str]]


def script(body: str, after: str, *, watch: str = "", end: str = "", epochs: int = EPOCHS) -> str:
    """A loop as a script of its own."""
    indented = "".join(f"        {line}\n" for line in body.splitlines())
    numbers = {"k": K, "rows": ROWS, "batches": BATCHES, "epochs": epochs}
    return LOOP.format(body=indented + after, watch=watch, end=end, **numbers)


def step_function(body: str, after: str) -> str:
    """A loop as pytest-torch wants it."""
    indented = "".join(f"        {line}\n" for line in body.splitlines())
    return STEPS.format(body=indented.rstrip("\n"), k=K, window=K * ROWS)


def by_hand(body: str, after: str) -> str:
    """A loop whose first two steps are compared with a large batch."""
    return script(body, after, watch=BY_HAND, end="print('\\n'.join({'deviates' for own in steps if not own}))\n")


def audited(body: str, after: str) -> str:
    """A loop that torch-audit watches."""
    end = "print('\\n'.join({own.rule_id for own in auditor.finish(report=False).findings}))\n"
    return script(body, after, watch=AUDITED, end=end)


def one_pass(body: str, after: str) -> str:
    """A loop that passes over its data once: what TrainCheck records of a micro-batch takes half a second."""
    return script(body, after, epochs=1)


def _lines(said: str) -> set[str]:
    return {line.strip() for line in said.splitlines() if line.strip()}


def _codes_of_verify(said: str) -> set[str]:
    told = json.loads(said)
    other = set() if told["verdict"] == Verdict.EQUIVALENT.value else {told["verdict"]}
    return {finding["code"] for finding in told["diagnosis"]} | other


def _verify(reference: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "gradcheck_accum", "verify", "--reference", reference, "--output-format", "json")


TOOLS = (
    Tool("plain script", "torch", script, (sys.executable,), _lines),
    Tool(
        "gradcheck-accum lint",
        "libcst",
        script,
        (sys.executable, "-m", "gradcheck_accum", "lint", "--no-cache", "--output-format", "json"),
        lambda said: {finding["code"] for finding in json.loads(said)["findings"]},
    ),
    Tool("verify --reference ledger", "torch", script, _verify("ledger"), _codes_of_verify),
    Tool("verify --reference both", "torch", script, _verify("both"), _codes_of_verify),
    Tool("by hand, two windows", "torch", by_hand, (sys.executable,), _lines),
    Tool("pytest-torch", "pytest_torch", step_function, (sys.executable,), _lines),
    Tool("torch-audit", "torch_audit", audited, (sys.executable,), _lines),
    Tool(
        "torch-preflight",
        "torch_preflight.cli",
        script,
        (sys.executable, "-c", "from torch_preflight.cli import main; main()", "check", "-f", "json", "-j", "1"),
        lambda said: {finding["code"] for finding in json.loads(said)["diagnostics"]},
    ),
    Tool(
        "TorchFix",
        "torchfix",
        script,
        (sys.executable, "-c", "from torchfix.__main__ import main; main()", "--select", "ALL", "--jobs", "1"),
        lambda said: set(re.findall(r"TOR\d+", said)),
    ),
    Tool("TrainCheck", "traincheck", one_pass, (sys.executable, "-c", LEARNING), _lines),
)


OF_THIS_ENVIRONMENT = ("torch", "libcst")
"""What the script itself, our own tools and the comparison by hand need."""


def run(command: tuple[str, ...], path: Path) -> Ran:
    """Run a command on a script, in its folder."""
    output, errors = path.with_suffix(".out"), path.with_suffix(".err")
    with output.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen([*command, path.name], cwd=path.parent, stdout=out, stderr=err)
        _, _, used = os.wait4(process.pid, 0)
    if "Traceback (most recent call last)" in errors.read_text():
        sys.exit(f"{' '.join(command)} {path.name} failed:\n{errors.read_text()}")
    return Ran(output.read_text(), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def is_installed(tool: Tool) -> bool:
    """Whether what a tool needs can be imported."""
    return subprocess.run([tool.command[0], "-c", f"import {tool.needs}"], capture_output=True).returncode == 0


def row(tool: Tool, repeats: int, folder: Path) -> list[str]:
    """What a tool takes on the right loop, and what it says of the others."""
    said: dict[str, set[str]] = {}
    for name, loop in LOOPS.items():
        path = folder / f"{name.replace(' ', '_').replace('-', '_')}.py"
        path.write_text(tool.text(*loop))
        said[name] = tool.found(run(tool.command, path).said)
    path = folder / "right.py"
    every = [run(tool.command, path) for _ in range(repeats)]
    cells = [tool.name, f"{statistics.median(own.seconds for own in every):.2f} s"]
    cells.append(f"{statistics.median(own.memory for own in every) / 2**20:.0f} MiB")
    cells.append(_in_short(said["right"]) or "nothing")
    cells += [_in_short(said[name] - said["right"]) or "-" for name in list(LOOPS)[1:]]
    return cells


def _in_short(found: set[str]) -> str:
    """What a tool says: its codes, or the number of its sentences."""
    codes = sorted(word for word in found if len(word) < 20)
    return " ".join(codes) or (f"seen ({len(found)})" if found else "")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tools", nargs="+", choices=[tool.name for tool in TOOLS], default=[t.name for t in TOOLS])
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="the Python that has the other tools")
    options = parser.parse_args()
    print("| tool | CPU | memory | of the right loop |", " | ".join(list(LOOPS)[1:]), "|")
    print("| --- " * (3 + len(LOOPS)) + "|")
    with tempfile.TemporaryDirectory() as name:
        for tool in (tool for tool in TOOLS if tool.name in options.tools):
            if tool.needs not in OF_THIS_ENVIRONMENT:
                tool = replace(tool, command=(options.peers, *tool.command[1:]))
            if not is_installed(tool):
                print(f"| {tool.name} | not installed |")
                continue
            print("|", " | ".join(row(tool, options.repeats, Path(name))), "|", flush=True)


if __name__ == "__main__":
    main()
