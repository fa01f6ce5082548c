"""Training that continues in modules next to the linted one: helpers that it calls, classes that it inherits from."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from loop_pages import written_loops

from gradcheck_accum.lint import lint_paths, lint_source
from gradcheck_accum.report.lint_text import summary
from gradcheck_accum.settings import Settings

LOOP = """\
import torch
{imports}

def main(loader, model, K):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(x), y)
        {calls}
"""
STEPS = """\
def micro_step(loss, opt, i, k):
    loss.backward()
    if (i + 1) % k == 0:
        update(opt)

def update(opt):
    opt.step()
    opt.zero_grad()
"""
UPDATE = """
def update(opt):
    opt.step()
    opt.zero_grad()
"""
BASE = """\
from .steps import update

class Trainer:
    def __init__(self, model, opt, loader, k):
        self.model, self.opt, self.loader, self.k = model, opt, loader, k

    def compute_loss(self, batch):
        raise NotImplementedError

    def fit(self):
        for i in range(100):
            self.opt.zero_grad()
            for _ in range(self.k):
                self.compute_loss(next(self.loader)).backward()
            update(self.opt)
"""
MINE = """\
import torch
from package.base import Trainer

class Mine(Trainer):
    def compute_loss(self, batch):
        return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1]){divided}

def main(loader):
    model = torch.nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    Mine(model, opt, loader, 4).fit()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, int, str]]]:
    monkeypatch.chdir(tmp_path)

    def findings(files: dict[str, str], *paths: str) -> list[tuple[str, int, str]]:
        for name, text in files.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(text)
        result = lint_paths(paths or ["."], Settings(), cache_in=tmp_path)
        assert not result.unreadable
        return [(f.where.path, f.where.line, f.mistake.code) for f in result.findings]

    return findings


@pytest.mark.parametrize(
    ("imports", "calls"),
    [
        ("from steps import micro_step", "micro_step(loss, opt, i, K)"),
        ("from steps import micro_step as one", "one(loss, opt, i, K)"),
        ("import steps", "steps.micro_step(loss, opt, i, K)"),
        ("import steps as s", "s.micro_step(loss, opt, i, K)"),
    ],
)
def test_a_helper_of_another_module_is_followed(
    project: Callable[..., list[tuple[str, int, str]]], imports: str, calls: str
) -> None:
    files = {"train.py": LOOP.format(imports=imports, calls=calls), "steps.py": STEPS}
    assert project(files, "train.py") == [("steps.py", 2, "GA101"), ("steps.py", 7, "GA301")]


def test_a_loop_that_leaves_only_the_step_to_another_module_is_told_at_its_own_line(
    project: Callable[..., list[tuple[str, int, str]]],
) -> None:
    calls = "loss.backward()\n        if (i + 1) % K == 0 or i + 1 == len(loader):\n            update(opt)"
    files = {"train.py": LOOP.format(imports="from steps import update", calls=calls), "steps.py": STEPS}
    assert project(files, "train.py") == [("train.py", 8, "GA101")]


@pytest.mark.parametrize(
    ("script", "module", "marker"),
    [
        ("src/tasks/train.py", "src/steps.py", "README.md"),  # a package without an __init__.py
        ("scripts/train.py", "src/steps.py", "setup.py"),  # run from the project's top directory
        ("tools/train.py", "src/steps.py", "README.md"),
    ],
)
def test_packages_of_the_project_are_found_wherever_its_scripts_are(
    project: Callable[..., list[tuple[str, int, str]]], script: str, module: str, marker: str
) -> None:
    Path(script).parent.mkdir(parents=True)
    Path(module).parent.mkdir(exist_ok=True)
    loop = LOOP.format(imports="from src.steps import micro_step", calls="micro_step(loss, opt, i, K)")
    found = project({script: loop, module: STEPS, marker: ""}, script)
    is_found = marker == "setup.py" or script.startswith("src")
    assert found == ([(module, 2, "GA101"), (module, 7, "GA301")] if is_found else [])


NETWORK = """\
from torch import nn
import torch.nn.functional as F

class Speller(nn.Module):
    def forward(self, x, y):
        return F.cross_entropy(self.layer(x), y, reduction="{reduction}")
"""


@pytest.mark.parametrize(("reduction", "expected"), [("mean", [("train.py", 9, "GA101")]), ("sum", [])])
def test_a_network_of_another_module_may_compute_a_sum(
    project: Callable[..., list[tuple[str, int, str]]], reduction: str, expected: list[tuple[str, int, str]]
) -> None:
    train = """\
from speller import Speller
from torch.optim import SGD

def fit(loader, every):
    assert len(loader) % every == 0
    model = Speller()
    opt = SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(loader, 1):
        model(x, y).backward()
        if i % every == 0:
            opt.step()
            opt.zero_grad()
"""
    assert project({"train.py": train, "speller.py": NETWORK.format(reduction=reduction)}, "train.py") == expected


SCALER = """\
import torch

class Scaler:
    def __init__(self):
        self.inner = torch.amp.GradScaler()

    def __call__(self, loss, optimizer, parameters=None, update_grad=True):
        self.inner.scale(loss).backward()
        if update_grad:
            self.inner.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, 0.7)
            self.inner.step(optimizer)
            self.inner.update()
"""


def test_what_is_told_when_to_step_is_told_at_the_place_that_tells_it(
    project: Callable[..., list[tuple[str, int, str]]],
) -> None:
    calls = (
        "scaler(loss / K, opt, model.parameters(), update_grad=(i + 1) % K == 0)\n"
        "        if (i + 1) % K == 0:\n            opt.zero_grad()"
    )
    main = LOOP.format(imports="from scalers import Scaler\n\nscaler = Scaler()", calls=calls)
    assert project({"train.py": main, "scalers.py": SCALER}, "train.py") == [("train.py", 10, "GA301")]
    right = main.replace("(i + 1) % K == 0", "((i + 1) % K == 0 or i + 1 == len(loader))")
    right = right.replace("loss / K", "loss / min(K, len(loader) - i // K * K)")
    assert project({"train.py": right, "scalers.py": SCALER}, "train.py") == []


@pytest.mark.parametrize("divided", ["", " / k"])
def test_a_name_that_a_package_passes_on_is_read_where_it_is_defined(
    project: Callable[..., list[tuple[str, int, str]]], divided: str
) -> None:
    calls = "micro_step(loss, opt, i, K)"
    files = {
        "train.py": LOOP.format(imports="from parts import (  # of mine\n    update,\n    micro_step,\n)", calls=calls),
        "parts/__init__.py": "from .steps import update, micro_step\n",
        "parts/steps.py": STEPS.replace("loss.backward()", f"(loss{divided}).backward()"),
    }
    mistakes = [("parts/steps.py", 7, "GA301")]
    assert project(files, "train.py") == ([] if divided else [("parts/steps.py", 2, "GA101")]) + mistakes


LOSSES = """\
import torch

def plain_loss(out, y):
    return torch.nn.functional.mse_loss(out, y){weight}

class Loss:
    def __init__(self, model):
        self.gain = model.gain

    def __call__(self, out, y):
        parts = plain_loss(out, y), out.abs().mean()
        return (parts[0] + 0.7 * parts[1]){weight}
"""


@pytest.mark.parametrize("padding", [0, 70_000], ids=["read", "too large to be read"])
@pytest.mark.parametrize(
    ("weight", "found"), [("", [("train.py", 9, "GA101")]), (" * y.shape[0]", [])], ids=["mean", "grows with the rows"]
)
@pytest.mark.parametrize("how", ["a function", "an object", "a member"])
def test_a_loss_of_the_project_weighs_what_its_definition_says(
    project: Callable[..., list[tuple[str, int, str]]], how: str, weight: str, found: list[object], padding: int
) -> None:
    calls = {
        "a function": ("from losses import plain_loss", "plain_loss(model(x), y)"),
        "an object": ("from losses import Loss", "own(model(x), y)"),
        "a member": ("import losses", "losses.plain_loss(model(x), y)"),
    }
    imports, call = calls[how]
    main = LOOP.format(imports=imports, calls="loss.backward()\n        if (i + 1) % K == 0:\n            update(opt)")
    main = main.replace("torch.nn.functional.mse_loss(model(x), y)", call)
    own = "Loss(model)" if how == "an object" else "None"
    main = main.replace("    for", f"    own = {own}\n    for")
    main += "        if i + 1 == len(loader):\n            update(opt)\n" + UPDATE
    losses = LOSSES.format(weight=weight) + "#" * padding
    assert project({"train.py": main, "losses.py": losses}, "train.py") == found


def test_other_files_are_named_in_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    calls = "loss.backward()\n        if (i + 1) % K == 0 or i + 1 == len(loader):\n            update(opt)"
    Path("train.py").write_text(LOOP.format(imports="from steps import update", calls=calls))
    Path("steps.py").write_text(STEPS)
    (finding,) = lint_paths(["train.py"]).findings
    assert "before the step at steps.py:7" in finding.message
    assert finding.fix is None or all(edit.line < 20 for edit in finding.fix.edits)


def test_a_loss_that_is_divided_where_it_is_made_is_right(
    project: Callable[..., list[tuple[str, int, str]]],
) -> None:
    files = {"package/__init__.py": "", "package/base.py": BASE, "package/steps.py": STEPS}
    assert project({**files, "package/mine.py": MINE.format(divided=" / 4")}, "package/mine.py") == []
    assert project({**files, "package/mine.py": MINE.format(divided="")}, "package/mine.py") == [
        ("package/base.py", 14, "GA101")
    ]


FIRST = "from second import one\n\ndef micro_step(loss, opt, i, k):\n    loss.backward()\n    one(opt, i, k)\n"
SECOND = """\
from third import two

def one(opt, i, k):
    if (i + 1) % k == 0:
        opt.step()
        two(opt)
"""
THIRD = """\
from fourth import update

def two(opt):
    print([p.grad.norm() for group in opt.param_groups for p in group["params"]])
    update(opt)
"""
FOURTH = "def update(opt):\n    opt.zero_grad()\n"
CHAIN = {"first.py": FIRST, "second.py": SECOND, "third.py": THIRD, "fourth.py": FOURTH}


def test_modules_are_followed_as_far_as_the_loop_needs_them(
    project: Callable[..., list[tuple[str, int, str]]],
) -> None:
    """What clears is in the fourth module from the loop: without it nothing would ever be cleared."""
    loop = LOOP.format(imports="from first import micro_step", calls="micro_step(loss / K, opt, i, K)")
    assert project({"train.py": loop, **CHAIN}, "train.py") == [("second.py", 5, "GA301")]


def test_what_the_budget_leaves_unread_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    many = "\n".join(f"from helper{n} import micro_step as step{n}" for n in range(15))
    calls = "\n        ".join(f"step{n}(loss / K, opt, i, K)" for n in range(15))
    Path("train.py").write_text(LOOP.format(imports=many, calls=calls))
    for n in range(15):
        Path(f"helper{n}.py").write_text(STEPS)
    Path("helper2.py").write_text(STEPS + "# " + "x" * 70_000)
    Path("helper3.py").write_text("x = 1\n")
    for _ in range(2):
        result = lint_paths(["train.py", "helper4.py"], cache_in=tmp_path)
        assert list(result.unread) == ["helper14.py", "helper2.py"]
        assert "2 imported modules not read (too large or too many)" in summary(result)


def test_what_several_files_show_is_told_once(project: Callable[..., list[tuple[str, int, str]]]) -> None:
    loop = LOOP.format(imports="from steps import micro_step", calls="micro_step(loss, opt, i, K)")
    files = {"train.py": loop, "again.py": loop, "steps.py": STEPS}
    assert project(files) == [("steps.py", 2, "GA101"), ("steps.py", 7, "GA301")]


def test_a_comment_beside_the_line_holds_whoever_runs_it(project: Callable[..., list[tuple[str, int, str]]]) -> None:
    hushed = STEPS.replace("loss.backward()", "loss.backward()  # gradcheck-accum: ignore[GA101]")
    loop = LOOP.format(imports="from steps import micro_step", calls="micro_step(loss, opt, i, K)")
    assert project({"train.py": loop, "steps.py": hushed}, "train.py") == [("steps.py", 7, "GA301")]


def test_a_remembered_outcome_does_not_outlive_the_other_module(
    project: Callable[..., list[tuple[str, int, str]]],
) -> None:
    loop = LOOP.format(imports="from steps import micro_step", calls="micro_step(loss, opt, i, K)")
    files = {"train.py": loop, "more.py": "x = 1\n"}
    assert project(files, "train.py", "more.py") == []
    files["steps.py"] = STEPS
    assert len(project(files, "train.py", "more.py")) == 2
    assert len(project(files, "train.py", "more.py")) == 2
    files["steps.py"] = STEPS.replace("loss.backward()", "(loss / k).backward()")
    assert project(files, "train.py", "more.py") == [("steps.py", 7, "GA301")]


@pytest.mark.parametrize(
    "steps",
    [
        "def micro_step(:\n",
        "\udcff".encode("utf-8", "surrogatepass").decode("latin-1"),
        "from train import main\n" + STEPS,
    ],
)
def test_a_module_that_cannot_be_read_or_imports_back_does_no_harm(
    project: Callable[..., list[tuple[str, int, str]]], steps: str
) -> None:
    loop = LOOP.format(imports="from steps import micro_step", calls="micro_step(loss, opt, i, K)")
    project({"train.py": loop, "steps.py": steps}, "train.py")


def test_modules_that_do_nothing_to_gradients_are_left_alone(
    project: Callable[..., list[tuple[str, int, str]]],
) -> None:
    step = "if (i + 1) % K == 0:\n            opt.step(); opt.zero_grad()"
    calls = f"show(loss)\n        (loss / K).backward()\n        {step}"
    files = {
        "train.py": LOOP.format(imports="from tools import show", calls=calls),
        "tools.py": "def show(loss):\n    print(loss.item())\n",
    }
    assert project(files, "train.py") == [("train.py", 11, "GA301")]


def test_a_scaler_that_calls_a_helper_elsewhere_is_still_a_piece_of_others_loops(
    project: Callable[..., list[tuple[str, int, str]]],
) -> None:
    files = {
        "clipping.py": "def clip(parameters):\n    for p in parameters:\n        shrink(p)\n\n"
        "def shrink(p):\n    p.grad.mul_(0.5)\n",
        "scaling.py": "from clipping import clip\n\nclass Scaler:\n"
        "    def __call__(self, loss, optimizer, parameters):\n        loss.backward()\n"
        "        clip(parameters)\n        optimizer.step()\n",
    }
    assert project(files, "scaling.py") == []


def _moved(loop: str) -> tuple[str, str] | None:
    """A loop without the helpers that can be in a module of their own, and that module."""
    module = ast.parse(loop)
    used = {n.func.id for n in ast.walk(module) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    helpers = [s for s in module.body if isinstance(s, ast.FunctionDef) and s.name in used]
    imports = [s for s in module.body if isinstance(s, (ast.Import, ast.ImportFrom))]
    rest = [s for s in module.body if s not in helpers and s not in imports]
    names = {t.id for s in rest if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)}
    if not helpers or any(isinstance(n, ast.Name) and n.id in names for s in helpers for n in ast.walk(s)):
        return None
    imported = f"from helpers import {', '.join(s.name for s in helpers)}"
    main = [*map(ast.unparse, imports), imported, *map(ast.unparse, rest)]
    return "\n".join(main), "\n".join(map(ast.unparse, [*imports, *helpers]))


WITH_HELPERS = {name: loop for name, loop in written_loops().items() if _moved(loop)}


@pytest.mark.parametrize("loop", WITH_HELPERS.values(), ids=WITH_HELPERS)
def test_a_loop_is_judged_the_same_with_its_helpers_in_another_module(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main, helpers = _moved(loop) or ("", "")
    Path("train.py").write_text(main)
    Path("helpers.py").write_text(helpers)
    before = lint_source(ast.unparse(ast.parse(loop)), "alone.py")
    after = lint_paths(["train.py", "helpers.py"]).findings
    assert sorted(f.mistake.code for f in after) == sorted(f.mistake.code for f in before)


PACED = """\
import torch

class PacedOptim:
    def __init__(self, net, settings):
        self.inner = torch.optim.Adam(net.parameters(), betas=settings["betas"])
        self.turn = settings["begin"]

    def step_and_pace(self):
        self.turn += 1
        for group in self.inner.param_groups:
            group["lr"] = self.turn**-0.5
        self.inner.step()

    def zero_grad(self):
        self.inner.zero_grad()
"""
MAKES_PACED = """\
from nets import Net, PacedOptim

def make(settings, device):
    net = Net(settings).to(device)
    return net, PacedOptim(net, settings)
"""
PACES = """\
import torch
from torch import nn
from helpers.making import make

def train(args, settings, device, loader):
    net, optimizer = make(settings, device)
    K = settings["grad_acc_step"]
    step = args.restored + 1
    while True:
        for x, y in loader:
            loss = nn.functional.mse_loss(net(x), y){scale}
            loss.backward()
            if step % K == 0:
                {inside}
            {each}
            step += 1
"""
CLIPS = "nn.utils.clip_grad_norm_(net.parameters(), 1.0)"
UPDATES = "optimizer.step_and_pace(); optimizer.zero_grad()"


@pytest.mark.parametrize(
    ("scale", "inside", "each", "expected"),
    [
        (" / K", CLIPS, UPDATES, [("train.py", 15, "GA304")]),
        (" / K", f"{CLIPS}; {UPDATES}", "pass", []),
        ("", f"{CLIPS}; {UPDATES}", "pass", [("train.py", 12, "GA101")]),
        (" / K", UPDATES, CLIPS, [("train.py", 15, "GA401"), ("train.py", 15, "GA402")]),
    ],
)
def test_an_optimizer_of_the_projects_own_is_stepped_where_it_is_called(
    project: Callable[..., list[tuple[str, int, str]]],
    scale: str,
    inside: str,
    each: str,
    expected: list[tuple[str, int, str]],
) -> None:
    files = {
        "train.py": PACES.format(scale=scale, inside=inside, each=each),
        "helpers/making.py": MAKES_PACED,
        "nets/__init__.py": "from .net import Net\nfrom .pace import PacedOptim\n",
        "nets/net.py": "from torch import nn\n\nclass Net(nn.Module):\n    pass\n",
        "nets/pace.py": PACED,
    }
    assert project(files, "train.py") == expected


def test_what_a_module_imports_by_its_own_name_is_next_to_the_script(
    project: Callable[..., list[tuple[str, int, str]]],
) -> None:
    loop = LOOP.format(imports="from utils.steps import micro_step", calls="micro_step(loss, opt, i, K)")
    inner = "from steps import update\n" + STEPS.partition("\n\ndef update")[0]
    files = {"train.py": loop, "utils/steps.py": inner, "steps.py": "def update" + STEPS.partition("def update")[2]}
    assert project(files, "train.py") == [("steps.py", 2, "GA301"), ("utils/steps.py", 3, "GA101")]
