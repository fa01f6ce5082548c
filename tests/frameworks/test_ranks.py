"""The same scripts on two ranks, started by torchrun: what the frameworks average and count over the ranks."""

from __future__ import annotations

import json

import pytest
from frameworks.ground import SCRIPTS, not_installed
from torchrun import launch


@pytest.mark.parametrize(
    ("package", "script", "data", "verdict", "codes"),
    [
        ("accelerate", "accelerate_loop.py", "equal", "equivalent", []),
        ("accelerate", "accelerate_loop.py", "unequal", "deviates", ["GA104"]),
        ("accelerate", "accelerate_loop.py", "remainder", "deviates", ["GA103"]),
        ("transformers", "transformers_trainer.py", "unequal", "equivalent", []),
        ("transformers", "transformers_trainer.py", "remainder", "equivalent", []),
        ("trl", "trl_sft.py", "unequal", "equivalent", []),
        ("timm", "timm_loop.py", "remainder", "equivalent", []),
        ("timm", "timm_loop.py", "unequal", "deviates", ["GA104"]),
    ],
)
def test_two_ranks(package: str, script: str, data: str, verdict: str, codes: list[str]) -> None:
    if not_installed(package):
        pytest.skip(not_installed(package))
    verify = ["-m", "gradcheck_accum", "verify", "--output-format", "json", script, "--", data]
    ended = launch(SCRIPTS, *verify)
    report = json.loads(ended.stdout)
    assert (report["verdict"], [d["code"] for d in report["diagnosis"]]) == (verdict, codes), report["reason"]
    assert report["ranks"] == 2
