"""Notes next to a verdict: each thing is noted once."""

from __future__ import annotations

import re

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradcheck_accum.verify import observe
from gradcheck_accum.verify.judge.notes import on_terms

K, ROWS, PENALTY = 4, 5, 0.25


def test_a_penalty_on_each_of_many_parameters_is_noted_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe() as observation:
        for i in range(2 * K):
            loss = cross_entropy(model(torch.randn(ROWS, 6)), torch.randint(0, 3, (ROWS,))) / K
            for parameter in model.parameters():
                loss = loss + PENALTY * parameter.pow(2).sum()
            loss.backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
    notes = observation.result().notes
    about = [note for note in notes if "penalty" in note]
    assert len(about) == len({re.sub(r" #\d+", "", note) for note in about}) == 1
    assert "penalty (likewise #2 to #6)" in about[0]


def test_notes_that_say_something_else_stay_apart() -> None:
    said = "the factor {} of penalty{} was read as part of the objective"
    notes = [said.format(0.5, ""), said.format(0.7, " #2"), said.format(0.5, " #3"), said.format(0.7, " #5")]
    assert on_terms(notes) == [
        "the factor 0.5 of penalty (likewise #3) was read as part of the objective",
        "the factor 0.7 of penalty #2 (likewise #5) was read as part of the objective",
    ]
    for unlike in (["MseLoss is one", "L1Loss #2 is one"], ["a #2 beside b #3", "a #2 beside b #4"], ["a", "a"]):
        assert on_terms(unlike) == list(dict.fromkeys(unlike))
