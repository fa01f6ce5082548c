"""Batches in objects: named tuples, dataclasses, objects of a library's own class, given to a model as a whole.

What a model depends on is the data in them. The gradients of right loops are compared here with those of one batch of
the window's rows, computed in float64 by the script itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult

KINDS = {
    "dataclass": "@dataclass\nclass Batch:\n    x: object\n    y: object",
    "frozen_slots": "@dataclass(frozen=True, slots=True)\nclass Batch:\n    x: object\n    y: object",
    "private_slots": (
        "class Base:\n    __slots__ = ('__x',)\n    def __init__(self, x): self.__x = x\n"
        "    @property\n    def x(self): return self.__x\n"
        "class Batch(Base):\n    __slots__ = 'y'\n    def __init__(self, x, y):\n"
        "        super().__init__(x)\n        self.y = y"
    ),
    "named_tuple": "class Batch(NamedTuple):\n    x: object\n    y: object",
    "object": "class Batch:\n    def __init__(self, x, y): self.store = {'x': x}; self.y = y\n"
    "    @property\n    def x(self): return self.store['x']",
    "namespace": "def Batch(x, y): return SimpleNamespace(x=x, y=y)",
    "mapping": "class Batch(UserDict):\n    def __init__(self, x, y): super().__init__(x=x, y=y)\n"
    "    x = property(lambda self: self.data['x'])\n    y = property(lambda self: self.data['y'])",
    "dictionary": "class Batch(OrderedDict):\n    def __init__(self, x, y):\n        super().__init__(x=x, y=y)\n"
    "        self.x, self.y = x, y",
    "circle": "class Batch:\n    def __init__(self, x, y): self.x, self.y, self.itself = x, y, self",
}
LOOP = """
import torch
from collections import OrderedDict, UserDict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple
from torch import nn
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
{before}{kind}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = {first}, {norm}, nn.Linear(7, 2)
    def forward(self, batch):
        return self.last(torch.tanh(self.norm(self.first(batch.x))))
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = {inputs}, torch.randn(36, 2)
def loss_of(batch):
    return nn.functional.mse_loss(model(batch), batch.y)
for xs, ys in zip(inputs.split(12), targets.split(12)):
    expected = torch.autograd.grad(loss_of(Batch(xs, ys)), [*model.parameters()]) if {checked} else None
    for x, y in zip(xs.split(4), ys.split(4)):
        (loss_of(Batch(x, y)){scale}).backward()
    if expected is not None:
        torch.testing.assert_close([p.grad for p in model.parameters()], list(expected))
    optimizer.step()
    optimizer.zero_grad()
"""
CENTRED = "class Centred(nn.Module):\n    def forward(self, h): return h - h.mean(0)\n"
TOKENS = {"first": "nn.Embedding(9, 7)", "inputs": "torch.randint(0, 9, (36,))"}


def loop_over(kind: str, **parts: object) -> str:
    given = {"first": "nn.Linear(5, 7)", "norm": "nn.Identity()", "inputs": "torch.randn(36, 5)", "scale": " / 3"}
    return LOOP.format(**{**given, "before": "", "checked": False, "kind": kind, **parts})


def watched(folder: Path, kind: str, **parts: object) -> VerifyResult:
    return watch_source(loop_over(KINDS[kind], **parts), folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_loop_over_objects_is_equivalent(kind: str, tmp_path: Path) -> None:
    result = watched(tmp_path, kind, checked=True)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())


@pytest.mark.parametrize("kind", ["dataclass", "named_tuple", "object"])
def test_a_loss_that_is_not_divided(kind: str, tmp_path: Path) -> None:
    result = watched(tmp_path, kind, scale="")
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, ["GA101"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_couples_the_samples_of_an_object(kind: str, tmp_path: Path) -> None:
    result = watched(tmp_path, kind, norm="nn.BatchNorm1d(7)")
    assert result.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION


@pytest.mark.parametrize("kind", ["dataclass", "named_tuple", "object"])
def test_a_target_in_the_object_does_not_show_how_the_model_treats_samples(kind: str, tmp_path: Path) -> None:
    """The error is linear in the target whatever couples the inputs, which are whole numbers without features here.

    They are not replaced, so that only a large batch differs, which may have been joined wrongly.
    """
    result = watched(tmp_path, kind, norm="Centred()", before=CENTRED, **TOKENS)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "does not show whether they depend on each other" in result.reason


def test_no_code_of_its_class_is_run(tmp_path: Path) -> None:
    """A replay runs the model again, and makes its own objects without their class's code."""
    counting = (
        "made = []\n"
        "class Batch:\n    def __init__(self, x, y): made.append(1); self.x, self.y = x, y\n"
        "    def __setattr__(self, name, value): made.append(name); object.__setattr__(self, name, value)\n"
        "    def __copy__(self): raise AssertionError\n"
        "    def __deepcopy__(self, memo): raise AssertionError"
    )
    source = loop_over(counting)
    counted = "assert (made.count(1), made.count('x')) == (9, 9)\n"
    assert watch_source(source + counted, tmp_path).verdict is Verdict.EQUIVALENT


def test_what_a_model_stores_in_the_object_is_not_what_it_was_given(tmp_path: Path) -> None:
    """A model that replaces ``batch.x``, as models of graphs do, is replayed with the data from before."""
    source = loop_over(KINDS["dataclass"]).replace(
        "return self.last", "batch.x = self.first(batch.x)\n        return self.last"
    )
    source = source.replace("self.norm(self.first(batch.x))", "self.norm(batch.x)")
    assert watch_source(source, tmp_path).verdict is Verdict.EQUIVALENT


GRAPHS = """
import torch
from typing import NamedTuple
from torch import nn
torch.manual_seed(6)
class Graph(NamedTuple):
    x: torch.Tensor
    edges: torch.Tensor
    y: torch.Tensor
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.others, self.out = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 1)
    def forward(self, graph):
        summed = torch.zeros_like(graph.x).index_add_(0, graph.edges[1], graph.x[graph.edges[0]])
        return self.out(torch.relu(self.own(graph.x) + self.others(summed)).mean(0))
graphs = [
    Graph(torch.randn(n, 4), torch.randint(0, n, (2, 2 * n)), torch.randn(1))
    for n in [3, 7, 4, 5, 6, 3, 8, 4, 5, 3, 6, 7, 4, 5, 3]
]
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for start in range(0, 15, 5):
    for graph in graphs[start:start + 5]:
        ((model(graph) - graph.y).abs().mean(){scale}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_one_graph_at_a_time(tmp_path: Path) -> None:
    assert watch_source(GRAPHS.format(scale=" / 5"), tmp_path).verdict is Verdict.EQUIVALENT


def test_one_graph_at_a_time_not_divided(tmp_path: Path) -> None:
    result = watch_source(GRAPHS.format(scale=""), tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, ["GA101"])


TRAINER = """
import torch
torch.manual_seed(3)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(5, 2)
    def forward(self, x, trainer):
        return self.inner(x) * trainer.scale
class Trainer:
    def __init__(self):
        self.model, self.scale, self.seen = Model(), torch.ones(()), 0
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def train(self):
        for _ in range(12):
            self.seen += 1
            loss = torch.nn.functional.mse_loss(self.model(torch.randn(4, 5), self), torch.randn(4, 2))
            (loss / 3).backward()
            if self.seen % 3 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
Trainer().train()
"""


def test_an_object_that_trains_is_no_data(tmp_path: Path) -> None:
    """It counts its micro-batches, and a large batch does not."""
    assert watch_source(TRAINER, tmp_path).verdict is Verdict.EQUIVALENT
