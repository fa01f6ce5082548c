"""Results of verify and compare, made by hand, of every kind that a page is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.results.comparison import Compared, CompareResult, Configuration, Difference
from gradcheck_accum.results.verdict import (
    ByParameter,
    CostReport,
    ParameterError,
    PassCost,
    ReferenceReport,
    Verdict,
    VerifyResult,
    WindowReport,
)

SOURCE = """\
for i, x in enumerate(data):
    loss = 0.7 * model(x).pow(2).mean()
    loss.backward()
    if (i + 1) % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def window(index: int, **other: Any) -> WindowReport:
    values: dict[str, Any] = {
        "optimizer": "SGD",
        "micro_batches": 3,
        "units": 15.0,
        "weights": (3.0, 3.0, 3.0),
        "grad_rel_error": 2.0,
        "grad_norm_ratio": 3.0,
        "tolerance": 3e-7,
        "param_rel_error": 2.0,
        "verdict": Verdict.DEVIATES,
        "path": "train.py",
        "line": 5,
    }
    return WindowReport(index, **{**values, **other})


def right(index: int, **other: Any) -> WindowReport:
    numbers = {"weights": (1.0, 1.0, 1.0), "grad_rel_error": 2e-8 * (1 + index % 7), "grad_norm_ratio": 1.0}
    return window(index, **{**numbers, "param_rel_error": 0.0, "verdict": Verdict.EQUIVALENT, **other})


SCALE = Diagnosis(
    CATALOGUE["GA101"], Location("train.py", 3), "it is not divided by 3", "divide the loss by 3", windows=(0, 1)
)
PARAMETERS = ByParameter(
    31, (ParameterError("encoder.0.weight", (5, 3), 2.0, 0.75), ParameterError("head.bias", (2,), None, 0.25))
)
COST = CostReport(3, PassCost(2048, 0.012), PassCost(6144, 0.004))


def result(*windows: WindowReport, **other: Any) -> VerifyResult:
    reference = ReferenceReport("ledger", "float32", "cpu")
    made = VerifyResult("train.py", Verdict.DEVIATES, SCALE.message, "cpu", reference, windows, (SCALE,), cost=COST)
    return replace(made, **other)


DEVIATING = result(window(0, by_parameter=PARAMETERS), window(1), notes=("the replay agrees",))
EQUIVALENT = result(right(0), right(1), verdict=Verdict.EQUIVALENT, reason="all 2 steps are right", diagnosis=())
OPEN = result(
    window(
        0, weights=(None, 1.0), grad_rel_error=None, tolerance=None, verdict=Verdict.INCONCLUSIVE, reason="no graph"
    ),
    verdict=Verdict.INCONCLUSIVE,
    reason="1 of 1 steps: no graph",
    diagnosis=(),
    help="state the coefficient",
    settled_by="gradcheck-accum compare train.py",
    cost=None,
)
ERROR = VerifyResult.failed("train.py", "ValueError: no data")
COMPARED = CompareResult(
    "train.py",
    Verdict.DEVIATES,
    "2 of 2 steps do not match",
    Configuration("--accum 1", 1, 15, 2),
    (
        Compared(
            Configuration("--accum 3", 3, 15, 2),
            Verdict.DEVIATES,
            "2 of 2 steps do not match",
            (window(0, weights=()), window(1, weights=(), drift=0.25)),
            (Difference("loss", "3 times too large", "train.py", 2),),
            ("a note on it",),
            replace(DEVIATING, verdict=Verdict.EQUIVALENT),
        ),
    ),
)


RESULTS = {"deviating": DEVIATING, "equivalent": EQUIVALENT, "open": OPEN, "error": ERROR, "compared": COMPARED}
