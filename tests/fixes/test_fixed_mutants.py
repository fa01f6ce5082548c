"""Random loops with one mistake each, after --fix --unsafe-fixes: equivalent for verify, or left as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_property import MUTANTS, Loop, _final_weights, few
from watching import found, watch_source

from gradcheck_accum.lint.fixes import fix_source
from gradcheck_accum.results.verdict import Verdict

pytestmark = pytest.mark.slow
a_few = settings(few, max_examples=8)


@pytest.mark.parametrize("code", list(MUTANTS))
def test_a_fixed_mutant_is_equivalent(code: str, tmp_path: Path) -> None:
    strategy, _ = MUTANTS[code]

    @a_few
    @given(strategy)
    def check(loop: Loop) -> None:
        mutant = replace(loop, mutation=code, scaler=code == "GA501", mark={})
        source = mutant.source()
        result = fix_source(source, "train.py", unsafe=True)
        if not result.fixed:
            # lint knows what is divided, not by how many units: it sees no mistake of scale there, and does not step
            # for a remainder whose scale it could not tell.
            assert mutant.by_units
            assert code in ("GA102", "GA301")
            assert result.source == source
            return
        assert result.remaining == ()
        measured = watch_source(result.source, tmp_path)
        assert measured.verdict is Verdict.EQUIVALENT, measured.reason
        assert measured.diagnosis == ()
        final = zip(_final_weights(result.source), loop.right_weights(), strict=True)
        assert all(torch.allclose(mine, right, rtol=1e-9, atol=1e-11) for mine, right in final)

    check()


@st.composite
def faulty_scripts(draw: st.DrawFn) -> str:
    """Scripts that make several mistakes at once, or none."""
    k = draw(st.integers(2, 4), label="K")
    count = 2 * k + draw(st.integers(0, k), label="remainder")
    own_number = "min(K, len(loader) - i // K * K)"
    scale = draw(st.sampled_from(["", "/ K", "/ K / K", "/ K / x.size(0)", f"/ {own_number}"]))
    clearing = draw(st.sampled_from(["first", "after backward", "before the step", "after the step", "never"]))
    test = draw(st.sampled_from(["(i + 1) % K == 0", "i % K == 0"]))
    flush = draw(st.sampled_from(["", " or i + 1 == len(loader)"]))
    clip = draw(st.sampled_from(["", "every batch", "before the step", "after the step"]))
    zero, limit = "optimizer.zero_grad()", "nn.utils.clip_grad_norm_(model.parameters(), 0.05)"
    lines = [
        *([zero] if clearing == "first" else []),
        f"loss = criterion(model(x), y) {scale}",
        "loss.backward()",
        *([zero] if clearing == "after backward" else []),
        *([limit] if clip == "every batch" else []),
        f"if {test}{flush}:",
        *([f"    {limit}"] if clip == "before the step" else []),
        *([f"    {zero}"] if clearing == "before the step" else []),
        "    optimizer.step()",
        *([f"    {zero}"] if clearing == "after the step" else []),
        *([f"    {limit}"] if clip == "after the step" else []),
    ]
    head = f"""\
import torch
from torch import nn
torch.manual_seed({draw(st.integers(0, 99))})
K = {k}
loader = [(torch.randn(3, 3).double(), torch.randint(0, 3, (3,))) for _ in range({count})]
model = nn.Linear(3, 3).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
"""
    return head + "".join(f"        {line}\n" for line in lines)


@settings(few, max_examples=20)
@given(faulty_scripts())
def test_several_mistakes_are_fixed_one_after_the_other(tmp_path: Path, source: str) -> None:
    result = fix_source(source, "train.py", unsafe=True)
    assert result.remaining == ()
    measured = watch_source(result.source, tmp_path)
    assert measured.verdict is Verdict.EQUIVALENT, measured.reason
    assert found(measured) == set()
