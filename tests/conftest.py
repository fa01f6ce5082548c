"""Helpers beside the tests, and the benchmarks, are imported by name; one thread is quickest for models this small."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

pytest_plugins = ["pytester"]

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "benchmarks")]
torch.set_num_threads(1)
os.environ.pop("FORCE_COLOR", None)  # some CI sets it; what is tested is plain text
