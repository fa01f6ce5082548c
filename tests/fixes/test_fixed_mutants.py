"""Random loops with one mistake each, after --fix --unsafe-fixes: equivalent for verify, or left as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from test_property import MUTANTS, Loop, _final_weights, few
from watching import watch_source

from gradcheck_accum.lint.fixes import fix_source
from gradcheck_accum.verdict import Verdict

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
        assert result.remaining == ()
        if not result.fixed:
            # lint knows what is divided, not by how many units: it sees no mistake of scale there.
            assert mutant.by_units
            assert code == "GA102"
            assert result.source == source
            return
        measured = watch_source(result.source, tmp_path)
        assert measured.verdict is Verdict.EQUIVALENT, measured.reason
        assert measured.diagnosis == ()
        final = zip(_final_weights(result.source), loop.right_weights(), strict=True)
        assert all(torch.allclose(mine, right, rtol=1e-9, atol=1e-11) for mine, right in final)

    check()
