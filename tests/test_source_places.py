"""Whose a line of code is, and how it is named: files wherever they are installed, and code that no file holds."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import gradcheck_accum
from gradcheck_accum.report.verify_text import verify_text
from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.verify import observe
from gradcheck_accum.verify.stack.frames import installed_folders

# K = 3, of which the loss shows nothing: GA101 at the backward's line, 9.
UNDIVIDED = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    x, y = torch.randn(5, 3), torch.randint(0, 2, (5,))
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if i % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_pytorch_beside_an_environment_is_not_the_users(tmp_path: Path) -> None:
    # As on a cluster: the environment is the user's, PyTorch comes from a folder of PYTHONPATH.
    venv.create(tmp_path / "environment", with_pip=False)
    (tmp_path / "train.py").write_text(UNDIVIDED)
    python = tmp_path / "environment" / "bin" / "python"
    path = [str(Path(gradcheck_accum.__file__).parents[1]), str(Path(torch.__file__).parents[1])]
    ended = subprocess.run(
        [python, "-m", "gradcheck_accum", "verify", "train.py", "--output-format", "json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
    )
    report = json.loads(ended.stdout)
    assert [(d["code"], d["path"], d["line"]) for d in report["diagnosis"]] == [("GA101", "train.py", 9)]
    assert {window["line"] for window in report["windows"]} == {11}


def test_folders_that_hold_packages(tmp_path: Path) -> None:
    torch_folder, program = tmp_path / "target" / "torch", tmp_path / "project" / "train.py"
    (tmp_path / "target" / "torch-9.9.dist-info").mkdir(parents=True)
    path = [str(tmp_path / "module" / "site-packages"), str(tmp_path / "lib"), str(tmp_path / "dist-packages")]
    found = installed_folders(path, str(torch_folder), str(program))
    for folder in (*path[::2], str(tmp_path / "target"), sysconfig.get_paths()["purelib"]):
        assert str(Path(folder).resolve()) + os.sep in found
    # A folder of the user's own modules, and one where the program is next to what it needs.
    assert str(tmp_path / "lib") + os.sep not in found
    beside = installed_folders(path, str(torch_folder), str(tmp_path / "target" / "train.py"))
    assert str(tmp_path / "target") + os.sep not in beside
    # PyTorch built in a checkout, where nothing was installed.
    checkout = installed_folders(path, str(tmp_path / "project" / "torch"), str(program))
    assert str(tmp_path / "project") + os.sep not in checkout


Run = Callable[[str, str, dict[str, object]], VerifyResult]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs code that is called by a name and sees it; Python knows its text as that of a cell is known."""

    def run(name: str, source: str, scope: dict[str, object]) -> VerifyResult:
        monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(keepends=True), name))
        with observe() as observation:
            exec(compile(source, name, "exec"), scope)
        return observation.result()

    return run


@pytest.mark.parametrize("name", ["/tmp/ipykernel_123/456.py", "<ipython-input-7-2c8fbb>"])
def test_a_cell_is_named_by_its_number_with_its_text(name: str, ran: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = ModuleType("IPython")
    compiler = SimpleNamespace(format_code_name=lambda asked: ("Cell", "In[3]") if asked == name else None)
    ipython.get_ipython = lambda: SimpleNamespace(compile=compiler)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    result = ran(name, UNDIVIDED, {"__name__": "__main__"})
    assert [str(d.where) for d in result.diagnosis] == ["cell 3:9"]
    assert "9 |     loss.backward()" in verify_text(result)


@pytest.mark.parametrize(
    ("name", "scope", "shown"),
    [
        ("<ipython-input-7-2c8fbb>", {"__name__": "__main__"}, "cell 7:9"),
        ("<stdin>", {"__name__": "__main__"}, "<stdin>:9"),
        ("<cell line: 1>", {"__name__": "__main__"}, "<cell line: 1>:9"),
        ("<string>", {}, "<string>:9"),
        ("<template>", {"__name__": "mine", "__file__": __file__}, "<template>:9"),
    ],
)
def test_code_that_no_file_holds_is_named_by_its_own_name(
    name: str, scope: dict[str, object], shown: str, ran: Run
) -> None:
    result = ran(name, UNDIVIDED, scope)
    assert [str(d.where) for d in result.diagnosis] == [shown]
    assert "9 |     loss.backward()" in verify_text(result)


def test_code_that_a_library_generates_is_not_the_users(ran: Run) -> None:
    library: dict[str, object] = {"__name__": "torch.generated", "__file__": torch.__file__}
    exec(compile("def send(loss):\n    loss.backward()\n", "<generated>", "exec"), library)
    source = UNDIVIDED.replace("loss.backward()", "send(loss)")
    result = ran("<stdin>", source, {"__name__": "__main__", "send": library["send"]})
    assert [str(d.where) for d in result.diagnosis] == ["<stdin>:9"]
