"""What products and convolutions in float32 are rounded to: put back as it was, however the script has said it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gradcheck_accum

ROOT = Path(gradcheck_accum.__file__).parents[1]

SETTINGS = [
    "pass",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.cudnn.allow_tf32 = False",
    "torch.set_float32_matmul_precision('high')",
    "torch.set_float32_matmul_precision('medium')",
]
NEWER = [
    "torch.backends.fp32_precision = 'tf32'",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
]
if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
    SETTINGS += NEWER

SCRIPT = """
import sys, torch
from torch import nn
from gradcheck_accum.verify import observe

def told():
    found = []
    for ask in (
        lambda: torch.get_float32_matmul_precision(),
        lambda: torch.backends.cuda.matmul.allow_tf32,
        lambda: torch.backends.cudnn.allow_tf32,
        lambda: torch.backends.cuda.matmul.fp32_precision,
        lambda: torch.backends.cudnn.conv.fp32_precision,
        lambda: torch.backends.mkldnn.matmul.fp32_precision,
    ):
        try:
            found.append(ask())
        except (AttributeError, RuntimeError) as error:
            # One interface refuses to answer where the other has been used.
            found.append(type(error))
    return found

class Asks(nn.Linear):
    def forward(self, x):
        answers.append(told())
        return super().forward(x)

{setting}
answers = []
before = told()
model = Asks(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with observe() as observation:
    for i in range(4):
        (model(torch.randn(2, 3)).square().mean() / 2).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
assert observation.result().verdict.value == "equivalent", observation.result().reason
assert told() == before, (told(), before)
inside = [own for own in answers if own != before] or [before]
for own in inside:
    assert own[0] in ("highest", RuntimeError) and own[1] in (False, RuntimeError), own
    assert not {{"tf32", "bf16"}} & set(map(str, own[3:])), own
"""
FORKED = """
import os, sys
import torch
import gradcheck_accum.verify
torch.optim.SGD([torch.zeros(1)], lr=0.1)  # loads for seconds what every script would load anew
for source in sys.argv[1:]:
    child = os.fork()
    if not child:
        exec(source)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="each setting is one of a whole process")
def test_the_precision_of_products_is_put_back() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    sources = [SCRIPT.format(setting=setting) for setting in SETTINGS]
    ended = subprocess.run(
        [sys.executable, "-c", FORKED, *sources], env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.stdout.split() == ["0"] * len(SETTINGS), ended.stderr
