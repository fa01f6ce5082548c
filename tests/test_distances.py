"""How far two gradients are from each other: parameter by parameter, a stretch at a time."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from gradcheck_accum.comparing.distances import Distances
from gradcheck_accum.verify.vectors.inner_products import stretches


def exact(values: list[float]) -> float:
    return math.sqrt(sum(Fraction(value) ** 2 for value in values))


def test_of_each_parameter_the_norms_of_both_and_of_their_difference() -> None:
    mine = [torch.tensor([[3.0, -4.0], [0.5, 0.25]]), None, torch.tensor([7.0]), None]
    theirs = [torch.tensor([[3.0, -1.0], [0.5, 0.125]]), torch.tensor([0.6, 0.8]), None, None]
    found = Distances.between(mine, theirs)
    assert found.mine == pytest.approx([exact([3, 4, 0.5, 0.25]), 0, 7, 0], rel=1e-15)
    assert found.theirs == pytest.approx([exact([3, 1, 0.5, 0.125]), 1, 0, 0], rel=1e-7)
    assert found.apart == pytest.approx([exact([3, 0.125]), 1, 7, 0], rel=1e-7)


def test_what_is_longer_than_a_stretch_and_lies_otherwise_in_memory() -> None:
    rows, columns = 3, next(stretches(1 << 30, torch.device("cpu")))[1] // 2 + 5
    mine = torch.arange(rows * columns, dtype=torch.float32).reshape(columns, rows).t()
    theirs = torch.ones(rows, columns)
    found = Distances.between([mine], [theirs])
    count = rows * columns
    squares = count * (count - 1) * (2 * count - 1) // 6
    assert found.mine == pytest.approx([math.sqrt(squares)], rel=1e-14)
    assert found.apart == pytest.approx([math.sqrt(squares - count * (count - 1) + count)], rel=1e-14)


def test_squares_that_float32_does_not_hold() -> None:
    found = Distances.between([torch.tensor([3e-30, 4e-30])], [torch.tensor([6e30, 8e30])])
    assert found.mine == pytest.approx([5e-30])
    assert found.theirs == pytest.approx([1e31])
