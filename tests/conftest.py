"""Helpers next to the tests, the benchmarks and what builds the site are imported by name; every test starts alike."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

try:
    import torch
except ModuleNotFoundError:
    torch = None  # type: ignore[assignment]  # lint needs none, nor do its tests

pytest_plugins = ["pytester"]

_ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(_ROOT / folder) for folder in ("tests", "benchmarks", "site_build")]
if torch:
    torch.set_num_threads(1)  # quickest for models this small
os.environ.pop("FORCE_COLOR", None)  # some CI sets it; what is tested is plain text
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so it is in the background of a shell

with contextlib.suppress(ModuleNotFoundError):  # an environment for tests/gpu alone may lack Hypothesis
    import drawing  # noqa: F401


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Scripts and tests that name no dtype run in float64, which autocast leaves alone."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def _starts_alike() -> None:
    if torch:
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float32)  # scripts that run in this process may have set another
    random.seed(0)
    # An observation looks for optimizers among all objects that the garbage collector knows: pytest's, PyTorch's and
    # those that earlier tests left are taken out of its sight, or each observation takes a second.
    gc.collect()
    gc.freeze()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and a folder for temporary files that nothing may be left in."""
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    return temporary
