"""Windows whose losses have no data but random numbers, beside losses of the same networks that have other data."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

maker, judge = nn.Linear(3, 5), nn.Linear(5, 1)
of_maker = torch.optim.SGD(maker.parameters(), lr=0.1)
of_judge = torch.optim.SGD(judge.parameters(), lr=0.1)


"""
LOOPS = labelled_loops("""\
#: right: what the maker makes of chance in each turn is its micro-batch, the judge's are given
def judged(real, wanted):
    return F.binary_cross_entropy_with_logits(judge(real), torch.full((len(real), 1), wanted))

for real in torch.randn(48, 5).split(12):
    of_judge.zero_grad()
    for part in real.split(4):
        with torch.no_grad():
            made = maker(torch.randn(4, 3))
        ((judged(part, 1.0) + judged(made, 0.0)) / 3).backward()
    of_judge.step()
    of_maker.zero_grad()
    for _ in range(3):
        (judged(maker(torch.randn(4, 3)), 1.0) / 3).backward()
    of_maker.step()

#= GA101: the maker's are not divided
-        (judged(maker(torch.randn(4, 3)), 1.0) / 3).backward()
+        judged(maker(torch.randn(4, 3)), 1.0).backward()

#= right: three terms of one objective, on the real data with noise
-        (judged(maker(torch.randn(4, 3)), 1.0) / 3).backward()
+        judged(real + maker(torch.randn(12, 3)), 1.0).backward()

#= right: three terms of one objective, compared with the real data
-        (judged(maker(torch.randn(4, 3)), 1.0) / 3).backward()
+        (maker(torch.randn(12, 3)) - real).square().mean().backward()
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_windows_of_chance(loop: LabelledLoop) -> None:
    """A finding for each mistake, and none for its look-alike."""
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes
