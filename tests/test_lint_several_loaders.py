"""Loops over loaders that a generator makes one after the other."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

LOOP = """\
import torch
from torch.utils.data import DataLoader
from parts import Part

def parts_of(names, size):
    for name in names:
        rows = Part(name)
        yield rows, DataLoader(rows, batch_size=size)

def train(model, names, optimizer, criterion, K, size):
    {first}
    for epoch in range(9):
        {begin}
        for rows, part in parts_of(names, size):
            for x, y in part:
                seen += 1
                (criterion(model(x), y){scaling}).backward()
                if seen % K == 0:
                    optimizer.step()
                    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("first", "begin", "scaling", "codes"),
    [
        ("seen = 0", "pass", " / K", []),
        ("pass", "seen = 0", " / K", ["GA301"]),
        ("seen = 0", "pass", "", ["GA101"]),
    ],
)
def test_each_of_the_loaders_is_run_over(first: str, begin: str, scaling: str, codes: list[str]) -> None:
    assert codes_in(LOOP.format(first=first, begin=begin, scaling=scaling)) == codes
