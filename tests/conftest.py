"""Helpers beside the tests, the benchmarks and what builds the site are imported by name; every test starts alike."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest_plugins = ["pytester"]

_ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(_ROOT / folder) for folder in ("tests", "benchmarks", "site_build")]
torch.set_num_threads(1)  # quickest for models this small
os.environ.pop("FORCE_COLOR", None)  # some CI sets it; what is tested is plain text

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
    torch.manual_seed(0)
    random.seed(0)
    # An observation looks for optimizers among all objects that the garbage collector knows: pytest's, PyTorch's and
    # those that earlier tests left are taken out of its sight, or each observation takes a second.
    gc.collect()
    gc.freeze()
