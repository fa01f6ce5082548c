"""Helpers beside the tests are imported by name; one thread is quickest for models this small."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

pytest_plugins = ["pytester"]

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
