"""compare's runs of a script, which begin as copies of one process that has loaded PyTorch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from gradcheck_accum.comparing import compare_script
from gradcheck_accum.results.verdict import Verdict
from gradcheck_accum.verify.process.template import NoCopies, Template

pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.slow]

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux alone")

SCRIPT = """\
import atexit, os, pathlib, sys
import torch

size, k, *how = sys.argv[1:]
pathlib.Path(f"ran-{k}").write_text(f"{os.getpid()} {os.getppid()} {__name__} {os.environ.get('OWN')}")
atexit.register(lambda: pathlib.Path(f"ended-{k}").touch())
torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, x in enumerate(torch.randn(45, 4).split(int(size))):
    (model(x).pow(2).mean() / int(k)).backward()
    if (i + 1) % int(k) == 0:
        optimizer.step()
        optimizer.zero_grad()
    if k == "3" and how == ["killed"]:
        os.kill(os.getpid(), 9)
    if k == "3" and how == ["exits"]:
        sys.exit(7)
"""
OF = (["5", "3"], ["15", "1"])


@pytest.fixture(autouse=True)
def script(elsewhere: None) -> None:
    Path("train.py").write_text(SCRIPT)


def ran() -> list[list[str]]:
    """What each run has said of itself: its process, that one's parent, its module's name, and a variable."""
    return [Path(f"ran-{k}").read_text().split() for k in (3, 1)]


@linux
def test_the_runs_are_processes_of_their_own_with_one_parent_and_end_as_a_script_ends() -> None:
    result = compare_script("train.py", OF)
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    (first, parent, name, _), (second, other, _, _) = ran()
    assert first != second
    assert parent == other != str(os.getpid())
    assert name == "__main__"
    assert Path("ended-3").exists() and Path("ended-1").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(parent), 0)


@linux
def test_a_run_with_variables_of_its_own_starts_from_nothing() -> None:
    result = compare_script("train.py", [["env", "OWN=yes", *OF[0]], OF[1]])
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    (_, parent, _, own), (_, other, _, none) = ran()
    assert (parent, own, none) == (str(os.getpid()), "yes", "None")
    assert other != parent


@pytest.mark.parametrize(
    ("how", "said"), [("killed", "the script was killed by SIGKILL"), ("exits", "the script ended with exit status 7")]
)
def test_how_a_run_ends_is_told(how: str, said: str) -> None:
    result = compare_script("train.py", OF, [how])
    assert (result.exit_status, result.error) == (2, f"with 5 3: {said}")


def test_where_nothing_can_be_copied_each_run_starts_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_copies(self: Template, arguments: list[str]) -> NoReturn:
        raise NoCopies

    monkeypatch.setattr(Template, "copy", no_copies)
    result = compare_script("train.py", OF)
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    assert {parent for _, parent, _, _ in ran()} == {str(os.getpid())}
