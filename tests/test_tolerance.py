"""What is allowed for rounding: by the formulas of docs/tolerances.md, and against sums that are really rounded."""

from __future__ import annotations

import math

import pytest
import torch

from gradcheck_accum.engine.tolerance import (
    Addends,
    gamma,
    replay_tolerance,
    sketched_cosine,
    sketched_norm,
    sum_tolerance,
    unit_roundoff,
)

UNEVEN = Addends((0.3, 0.5, 1.1, 0.2, 0.7), 1.4)
OPPOSED = Addends((3.0, 2.5, 0.75), 0.25)
"""Contributions that almost cancel: what rounding costs is large compared with what is left."""
DTYPES = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""The unit roundoffs that these dtypes' significands of 24, 8 and 11 bits give."""


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_a_rounding_is_half_a_unit_in_the_last_place(dtype: torch.dtype) -> None:
    assert unit_roundoff(dtype) == {**DTYPES, torch.float64: 2.0**-53}[dtype]


@pytest.mark.parametrize(("count", "expected"), [(0, 0.0), (3, 0.75 / 0.25), (4, math.inf), (5, math.inf)])
def test_gamma_has_no_bound_from_1_over_u_roundings_on(count: int, expected: float) -> None:
    assert gamma(count, 0.25) == expected


@pytest.mark.parametrize("addends", [UNEVEN, OPPOSED])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_is_allowed_what_the_docs_say(dtype: torch.dtype, addends: Addends) -> None:
    u, sizes, total = DTYPES[dtype], addends.contributions, addends.total
    m = len(sizes)
    wandering = max(total, sum(size**2 for size in sizes) ** 0.5)
    k = m + 8
    worst = k * u / (1 - k * u) * sum(sizes) / total
    usual = u * (4 * m**0.5 * wandering + 8 * total) / total
    allowed = sum_tolerance(addends, dtype)
    assert allowed.worst == pytest.approx(worst, rel=1e-12)
    assert allowed.usual == pytest.approx(min(usual, worst), rel=1e-12)
    assert allowed.norm == pytest.approx(m**0.5 * 2 * u + 8 * u, rel=1e-12)


def test_float64_is_allowed_the_roundings_of_the_measurement_too() -> None:
    u, sizes, total = 2.0**-53, UNEVEN.contributions, UNEVEN.total
    allowed = sum_tolerance(UNEVEN, torch.float64)
    wandering = max(total, sum(size**2 for size in sizes) ** 0.5)
    assert allowed.worst == pytest.approx((5 + 8 + 16) * u * sum(sizes) / total, rel=1e-12)
    assert allowed.usual == pytest.approx(u * (4 * 5**0.5 * wandering + 24 * sum(sizes)) / total, rel=1e-12)
    assert allowed.norm == pytest.approx(u * (2 * 5**0.5 + 24), rel=1e-12)


def test_the_smaller_of_both_bounds_is_allowed() -> None:
    """One contribution: 9 roundings at worst, where the rule alone would allow 12."""
    allowed = sum_tolerance(Addends((2.5,), 2.5), torch.float32)
    assert allowed.usual == allowed.worst == pytest.approx(9 * 2.0**-24, rel=1e-6)


@pytest.mark.parametrize(
    ("dtype", "computed_in", "passes"),
    [
        (torch.float32, torch.float32, 64),
        (torch.float32, torch.bfloat16, 6),
        (torch.float32, torch.float16, 6),
        (torch.bfloat16, torch.bfloat16, 6),
    ],
)
def test_a_replay_is_allowed_a_pass_on_either_side(dtype: torch.dtype, computed_in: torch.dtype, passes: int) -> None:
    u, sizes, total = DTYPES[computed_in], UNEVEN.contributions, UNEVEN.total
    noise = passes * u * (sum(size**2 for size in sizes) ** 0.5 + total) / total
    found = replay_tolerance(UNEVEN, dtype, computed_in)
    assert found - sum_tolerance(UNEVEN, dtype).usual == pytest.approx(noise, rel=1e-9)


def test_of_a_gradient_of_zero_no_part_is_allowed() -> None:
    nothing = Addends((0.5, 0.5), 0.0)
    allowed = sum_tolerance(nothing, torch.float32)
    assert (allowed.usual, allowed.worst, allowed.norm) == (0.0, 0.0, 0.0)
    assert replay_tolerance(nothing, torch.float32, torch.bfloat16) == 0.0


@pytest.mark.parametrize("m", [2, 7, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_that_is_really_rounded_is_within_what_is_allowed(dtype: torch.dtype, m: int) -> None:
    torch.manual_seed(m)
    addends = (torch.randn(m, 2000, dtype=torch.float64) + 0.3).to(dtype)
    exact = addends.double().sum(0)
    rounded = torch.zeros(2000, dtype=dtype)
    for addend in addends:
        rounded += addend
    error = float((rounded.double() - exact).norm() / exact.norm())
    allowed = sum_tolerance(Addends([float(a.double().norm()) for a in addends], float(exact.norm())), dtype)
    assert error <= allowed.usual <= allowed.worst
    assert abs(float(rounded.double().norm() / exact.norm()) - 1) <= allowed.norm
    assert allowed.usual < 100 * error  # and a wrong weight is not hidden by it


def test_a_sketch_tells_a_norm_within_these_bounds() -> None:
    bounds = sketched_norm(2.5)
    assert (bounds.low / 2.5, bounds.high / 2.5) == pytest.approx((0.88, 1.16), abs=0.005)
    assert (bounds.low / bounds.high, bounds.high / bounds.low) == pytest.approx((0.76, 1.31), abs=0.005)
    # 2 √(p t), p = 1/512 and t = ln(4 / 0.001)
    assert sketched_cosine() == pytest.approx(2 * (8.29405 / 512) ** 0.5, rel=1e-5)
