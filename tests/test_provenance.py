"""Where a run says that its numbers come from: what the source has for a divisor, and for what decides on a step.

Nothing here is judged: the events say what the source has, and a look-alike of K is to be none.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType

import pytest
from watching import watch_source

from gradcheck_accum.ledger.events import Backward, Event, Factor, ScaleGrads, Step, WindowBound
from gradcheck_accum.ledger.stated_names import is_length, name_in
from gradcheck_accum.verify import observe
from gradcheck_accum.verify.provenance import numbered, syntax
from gradcheck_accum.verify.session import ReferenceName

HEAD = """
import argparse, dataclasses, functools, itertools, types
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
X, T = torch.randn(35, 6), torch.randn(35, 2)
loader = list(zip(X.split(5), T.split(5)))
def loss_of(x, t): return F.mse_loss(model(x), t)
def backward(batch, scale=0.7): (scale * loss_of(*batch)).backward()
def step(): optimizer.step(); optimizer.zero_grad()
"""


def events_of(source: str, folder: Path, reference: str = "ledger", head: str = HEAD) -> Sequence[Event]:
    """What a run of a script after ``head`` comes to."""
    path = folder / "train.py"
    path.write_text(head + source, encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()), observe(script=str(path), reference=reference) as observation:  # type: ignore[arg-type]
        runpy.run_path(str(path), run_name="__main__")
    return observation.seen().trace.events


def bounds_of(source: str, folder: Path) -> list[WindowBound | None]:
    """What each step is decided by, according to the events."""
    return [event.counted_by for event in events_of(source, folder) if isinstance(event, Step)]


def factors_of(source: str, folder: Path) -> list[Factor]:
    """The factors of all losses of a run, and those of its gradients."""
    events = events_of(source, folder, "both")
    found = [f for e in events if isinstance(e, Backward) for term in e.terms for f in term.factors]
    return found + [e.factor for e in events if isinstance(e, ScaleGrads)]


def place(source: str, constant: str, head: str = HEAD) -> str:
    """The end of the origin that is the place of the constant before ``#*``."""
    lines = (head + source).splitlines()
    number, line = next((n, line) for n, line in enumerate(lines, 1) if "#*" in line)
    return f":{number}:{line.rindex(constant, 0, line.index('#*')) + 1}"


def names(origins: frozenset[str]) -> set[str]:
    """Origins without the places of constants, and without those of the lengths of lists."""
    named = (origin for origin in origins if not re.search(r":\d+:\d+$", origin) and not is_length(origin))
    return {name_in(origin) for origin in named}


# What decides on a step

LOOP = """
K = 3
for i, batch in enumerate(loader):
    backward(batch)
    {test}
"""
DECIDED = {
    "a modulus": "if (i + 1) % K == 0: step()",
    "a modulus on the right": "if 0 == (i + 1) % K: step()",
    "a modulus against K - 1": "if i % K == K - 1: step()",
    "no remainder": "if not (i + 1) % K: step()",
    "an or": "if (i + 1) % K == 0 or i + 1 == len(loader): step()",
    "an or with a bound name": "last = len(loader)\n    if (i + 1) % K == 0 or (i + 1) % last == 0: step()",
    "an and": "if i >= 0 and (i + 1) % K == 0: step()",
    "an and that steps": "(i + 1) % K == 0 and step()",
    "an expression": "step() if (i + 1) % K == 0 else None",
    "an else": "if (i + 1) % K != 0:\n        pass\n    else:\n        step()",
    "a guard": "if (i + 1) % K != 0:\n        continue\n    step()",
    "a guard by truth": "if (i + 1) % K: continue\n    step()",
    "a guard with the end": "if (i + 1) % K and i + 1 < len(loader): continue\n    step()",
    "a name of the test": "full = (i + 1) % K == 0\n    if full: step()",
    "a name in a test": "full, last = (i + 1) % K == 0, i + 1 == len(loader)\n    if full or last: step()",
    "a named test": "if full := (i + 1) % K == 0: step()",
    "a name of K": "every = K\n    if (i + 1) % every == 0: step()",
    "a test inside another": "if i % 2 == 0 or i:\n        if (i + 1) % K == 0: step()",
    "a test around others": "if (i + 1) % K == 0:\n        if i:\n            with torch.no_grad(): step()",
    "a log line before": "if i % 2 == 0: print(i)\n    if (i + 1) % K == 0: step()",
    "a log line around the print": "if (i + 1) % K == 0:\n        if i % 2 == 0: print(i)\n        step()",
    "a list of optimizers": "if (i + 1) % K == 0:\n        [o.step() for o in [optimizer]]; optimizer.zero_grad()",
    "a loop of optimizers": "if (i + 1) % K == 0:\n        for o in [optimizer]: o.step(); o.zero_grad()",
    "a lambda": "if (i + 1) % K == 0: (lambda: step())()",
    "a try": "try:\n        if (i + 1) % K == 0: step()\n    finally:\n        pass",
}


@pytest.mark.parametrize("form", DECIDED)
def test_a_test_that_decides_on_a_step(form: str, tmp_path: Path) -> None:
    found = bounds_of(LOOP.format(test=DECIDED[form]), tmp_path)
    assert len(found) >= 2
    for bound in found:
        assert bound is not None
        assert bound.steps == 3
        assert "K" in bound.origins


UNDECIDED = {
    "every micro-batch": "step()",
    "a log line": "if (i + 1) % 2 == 0: print(i)\n    step()",
    "an evaluation": "if (i + 1) % 2 == 0:\n        with torch.no_grad(): model(X)\n    step()",
    "finite losses": "if torch.isfinite(X).all(): step()",
    "a scaler": "scaler = None\n    if scaler is None: step()",
    "the length of a pass": "if (i + 1) % len(loader) == 0: step()",
    "a name of the length": "last = len(loader)\n    if i + 1 == last: step()",
    "half of the length": "if (i + 1) % (len(loader) // 2) == 0: step()",
    "all but every third": "if i % K != 0: step()",
    "all but every third, else": "if i % K == 0:\n        pass\n    else:\n        step()",
    "a number that counts nothing": "stage = 2\n    if stage == 2: step()",
    "a first micro-batch": "if i >= 2: step()",
    "a mode": "mode = 'train'\n    if mode == 'train': step()",
    "two numbers": "M = 2\n    if (i + 1) % K == 0 and (i + 1) % M == 0: step()",
    "samples": "seen = 0 if i == 0 else seen\n    seen += len(batch[0])\n    if seen % 15 == 0: step()",
    "tokens": "seen = 0 if i == 0 else seen\n    seen += len(batch[0])\n    if seen >= 15: step(); seen = 0",
    "rows": "for row in range(5, 16, 5):\n        backward(batch)\n        if row % 15 == 0: step()",
    "groups": "if (i // 2) % K == 0: step()",
    "a number that nobody can read": "if (i + 1) % (lambda: 3)() == 0: step()",
    "an or with a call": "if i > 1 or model.training: step()",
}


@pytest.mark.parametrize("form", UNDECIDED)
def test_what_does_not_decide_on_a_step(form: str, tmp_path: Path) -> None:
    found = bounds_of(LOOP.format(test=UNDECIDED[form]), tmp_path)
    assert found
    assert set(found) == {None}


COUNTED = """
K, count, kept = 3, 0, []
for epoch in range(2):
    {start}
    for batch in loader:
        backward(batch)
        count += 1; kept.append(batch)
        {test}
"""


@pytest.mark.parametrize(
    ("test", "start", "steps"),
    [
        ("if count == K: step(); count = 0", "pass", 3),
        ("if K == count: step(); count = 0", "pass", 3),
        ("if count >= K: step(); count = 0", "pass", 3),
        ("if K <= count: step(); count -= K", "pass", 3),
        ("if count < K: continue\n        step(); count = 0", "pass", 3),
        ("if not count < K: step(); count = 0", "pass", 3),
        ("if count == K - 1 + 1: step(); count = 0", "pass", 3),
        ("if count - 1 == K - 1: step(); count = 0", "pass", 3),
        ("if count % K == 0: step()", "pass", 3),
        ("if len(kept) == K: step(); kept.clear()", "pass", 3),
        ("if len(kept) >= 3: step(); kept = []", "pass", 3),
        ("if len(kept) == K: step(); del kept[:]", "pass", 3),
        # A warm-up: what is compared goes on to grow.
        ("if count >= K: step()", "pass", None),
        ("if count >= K: step()", "count = 0", None),
        ("if len(kept) >= K: step()", "kept = []", None),
        ("if epoch == 1: step()", "pass", None),
        # Passes are counted here, and no micro-batches.
        ("if (epoch + 1) % 2 == 0: step()", "pass", None),
        ("if count == len(loader): step(); count = 0", "pass", None),
    ],
)
def test_a_count_that_starts_anew(test: str, start: str, steps: int | None, tmp_path: Path) -> None:
    found = bounds_of(COUNTED.format(test=test, start=start), tmp_path)
    assert found
    assert {None if bound is None else bound.steps for bound in found} == {steps}


LOOPS = {
    "range": ("for _ in range(K): backward(next(batches))", 3),
    "range from one": ("for n in range(1, K + 1): backward(next(batches))", 3),
    "islice": ("for batch in itertools.islice(batches, K): backward(batch)", 3),
    "chunks": ("x, t = X[:15], T[:15]\n    for batch in zip(x.chunk(K), t.chunk(K)): backward(batch)", 3),
    "torch's chunks": ("for n, x in enumerate(torch.chunk(X, K)): backward((x, T[:len(x)]))", 3),
    "chunks with a name": ("parts = X.chunk(chunks=K)\n    for x in parts: backward((x, T[:len(x)]))", 3),
    "a while": ("n = 0\n    while n < K: backward(next(batches)); n += 1", 3),
    "a slice": ("first = 1\n    for batch in loader[first : first + K]: backward(batch)", 3),
    "a slice with a name": ("window = loader[:K]\n    for batch in window: backward(batch)", 3),
    "what follows a slice": ("for batch in loader[K:]: backward(batch)", None),
    "a list of what is drawn": (
        "window = [next(batches) for _ in range(K)]\n    for batch in window: backward(batch)",
        3,
    ),
    "what is drawn meanwhile": ("for batch in (next(batches) for _ in range(K)): backward(batch)", 3),
    "a list of some": ("for batch in [b for b in loader[:K] if len(b)]: backward(batch)", None),
    "a step that never runs": (
        "for _ in range(K):\n        backward(next(batches))\n        if False: step()",
        3,
    ),
    "something between": (
        "for _ in range(K): backward(next(batches))\n    nn.utils.clip_grad_norm_([model.weight], 9)",
        3,
    ),
    "a step in a with": (
        "for _ in range(K): backward(next(batches))\n    with torch.no_grad(): pass",
        3,
    ),
    "all batches": ("for batch in loader: backward(batch)", None),
    "as many as there are": ("for n in range(len(loader)): backward(loader[n])", None),
    "parts of a size": ("for x in X.split(7): backward((x, T[:7]))", None),
    "no backward in it": ("for n in range(K): print(n)\n    backward(next(batches))", None),
}


@pytest.mark.parametrize("form", LOOPS)
def test_a_loop_that_ends_before_the_step(form: str, tmp_path: Path) -> None:
    body, steps = LOOPS[form]
    source = f"K = 3\nbatches = itertools.cycle(loader)\nfor _ in range(2):\n    {body}\n    step()\n"
    found = bounds_of(source, tmp_path)
    assert [None if bound is None else bound.steps for bound in found] == [steps] * 2
    assert all("K" in bound.origins for bound in found if bound is not None and bound.steps is not None)


@pytest.mark.parametrize(
    ("flush", "steps"),
    [
        ("step()", None),
        ("if (i + 1) % K != 0: step()", None),
        ("if len(loader) % K: step()", 3),
        ("if len(loader) % K != 0: step()", 3),
        ("if len(loader) % K > 0: step()", 3),
    ],
)
def test_the_flush_after_a_loop_is_counted_by_what_may_leave_a_remainder(
    flush: str, steps: int | None, tmp_path: Path
) -> None:
    loop = "K = 3\nfor i in range(7):\n    backward(loader[i])\n    if (i + 1) % K == 0:\n        step()\n"
    found = bounds_of(loop + flush + "\n", tmp_path)
    assert [None if bound is None else bound.steps for bound in found] == [3, 3, steps]


def test_what_is_trained_every_so_often_is_no_window(tmp_path: Path) -> None:
    """The critic's K is its own: the generator's backward runs behind its test."""
    source = """
other = nn.Linear(6, 2)
generator = torch.optim.SGD(other.parameters(), lr=0.1)
for i, (x, t) in enumerate(loader):
    loss_of(x, t).backward()
    if (i + 1) % 2 == 0: step()
    if i % 3 == 0:
        F.mse_loss(other(x), t).backward()
        generator.step(); generator.zero_grad()
"""
    found = [(e.optimizer, e.counted_by) for e in events_of(source, tmp_path) if isinstance(e, Step)]
    assert {bound.steps for name, bound in found if name == "SGD" and bound} == {2}
    assert [bound for name, bound in found if name != "SGD"] == [None] * 3


def test_a_test_of_passes_that_is_passed(tmp_path: Path) -> None:
    source = """
def update(full):
    if full: step()
for epoch in range(4):
    for batch in loader:
        backward(batch)
        update((epoch + 1) % 2 == 0)
"""
    assert bounds_of(source, tmp_path) == [None] * 14


def test_a_count_of_a_pass_is_none_of_windows(tmp_path: Path) -> None:
    """After the first two of each pass every micro-batch steps."""
    source = """
class Trainer:
    def begin(self): self.seen = 0
    def train(self, wait):
        for epoch in range(2):
            self.begin()
            for batch in loader:
                backward(batch)
                self.seen += 1
                if self.seen >= wait: self.update()
    def update(self): step()
Trainer().train(3)
"""
    assert bounds_of(source, tmp_path) == [None] * 10


def test_a_test_around_the_whole_loop_decides_on_no_step(tmp_path: Path) -> None:
    source = """
def train():
    for i, batch in enumerate(loader):
        backward(batch)
        if i > 1 or model.training: step()
for epoch in range(4):
    if epoch % 2 == 0: train()
"""
    assert bounds_of(source, tmp_path) == [None] * 14


def test_a_backward_in_both_branches(tmp_path: Path) -> None:
    test = "if (i + 1) % K:\n        backward(batch)\n    else:\n        backward(batch); step()"
    found = bounds_of(LOOP.replace("    backward(batch)\n", "").format(test=test), tmp_path)
    assert [bound and bound.steps for bound in found] == [3, 3]


FUNCTIONS = {
    "a helper": (
        "def step_if(i, every):\n    if i % every == 0:\n        step()\n"
        "def train(accum):\n    for i, batch in enumerate(loader):\n        backward(batch)\n"
        "        step_if(i + 1, accum)\ntrain(accum=3)\n",
        {"every", "accum"},
    ),
    "a closure": (
        "def train(accum):\n    def maybe(i):\n        if i % accum == 0: step()\n"
        "    for i, batch in enumerate(loader):\n        backward(batch)\n        maybe(i + 1)\nN = 3\ntrain(N)\n",
        {"accum", "N"},
    ),
    "a lambda": (
        "accum = 3\nmaybe = lambda i: step() if i % accum == 0 else None\n"
        "for i, batch in enumerate(loader):\n    backward(batch)\n    maybe(i + 1)\n",
        {"accum"},
    ),
    "a lambda's own": (
        "maybe = lambda i, every: step() if i % every == 0 else None\nN = 3\n"
        "for i, batch in enumerate(loader):\n    backward(batch)\n    maybe(i + 1, N)\n",
        {"every", "N"},
    ),
    "a trainer": (
        "class Trainer:\n    def __init__(self, every): self.accum, self.seen = every, 0\n"
        "    def train(self):\n        for batch in loader:\n            backward(batch); self.seen += 1\n"
        "            if self.seen % self.accum == 0: self.update()\n"
        "    def update(self): step()\nTrainer(3).train()\n",
        {"accum", "self.accum", "every"},
    ),
    "a trainer's count": (
        "class Trainer(nn.Module):\n    def __init__(self, every):\n        super().__init__()\n"
        "        self.accum = max(every, 1); self.seen = 0\n"
        "    def train_on(self, batch):\n        backward(batch); self.seen += 1\n"
        "        if self.seen >= self.accum: self.update()\n"
        "    def update(self): step(); self.seen = 0\n"
        "trainer = Trainer(3)\nfor batch in loader: trainer.train_on(batch)\n",
        {"accum", "self.accum", "every"},
    ),
    "a decorated function": (
        "@torch.no_grad()\ndef step_if(i, every):\n    if i % every == 0: step()\nN = 3\n"
        "for i, batch in enumerate(loader):\n    backward(batch)\n    step_if(i + 1, N)\n",
        {"every", "N"},
    ),
    "a default": (
        "def train(accum=3):\n    for i, batch in enumerate(loader):\n        backward(batch)\n"
        "        if (i + 1) % accum == 0: step()\ntrain()\n",
        {"accum"},
    ),
    "a namespace": (
        "def train(args):\n    for i, batch in enumerate(loader):\n        backward(batch)\n"
        "        if (i + 1) % args.accum == 0: step()\ntrain(argparse.Namespace(accum=3))\n",
        {"accum", "args.accum"},
    ),
    "a dataclass in another": (
        "@dataclasses.dataclass\nclass Training:\n    accum: int = 3\n"
        "config = types.SimpleNamespace(training=Training())\n"
        "for i, batch in enumerate(loader):\n    backward(batch)\n"
        "    if (i + 1) % config.training.accum == 0: step()\n",
        {"accum", "config.training.accum"},
    ),
    "a dictionary": (
        'cfg = {"accum": 3}\nfor i, batch in enumerate(loader):\n    backward(batch)\n'
        '    if (i + 1) % cfg["accum"] == 0: step()\n',
        {"accum", "cfg['accum']"},
    ),
    "a dictionary's get": (
        'cfg = {"accum": 3}\nfor i, batch in enumerate(loader):\n    backward(batch)\n'
        '    if (i + 1) % cfg.get("accum", 1) == 0: step()\n',
        {"accum", "cfg['accum']"},
    ),
    "a method that tells": (
        "class Trainer:\n    def __init__(self, every): self.accum = every\n"
        "    def is_full(self, i):\n        return (i + 1) % self.accum == 0\n"
        "    def train(self):\n        for i, batch in enumerate(loader):\n            backward(batch)\n"
        "            if self.is_full(i): step()\nTrainer(3).train()\n",
        {"accum", "self.accum", "every"},
    ),
    "an attribute that tells": (
        "class Trainer:\n    def __init__(self, every): self.accum = every\n"
        "    def train(self):\n        for i, batch in enumerate(loader):\n            backward(batch)\n"
        "            self.full = (i + 1) % self.accum == 0\n            self.update()\n"
        "    def update(self):\n        if self.full: step()\nTrainer(3).train()\n",
        {"accum", "self.accum", "every"},
    ),
    "a test that is passed": (
        "def update(full):\n    if not full: return\n    step()\n"
        "def train(accum):\n    for i, batch in enumerate(loader):\n        backward(batch)\n"
        "        update(full=(i + 1) % accum == 0)\nN = 3\ntrain(N)\n",
        {"accum", "N"},
    ),
    "a function that tells": (
        'def is_full(i, every):\n    """Whether a window is."""\n    return i % every == 0\nN = 3\n'
        "for i, batch in enumerate(loader):\n    backward(batch)\n    if is_full(i + 1, every=N): step()\n",
        {"N"},
    ),
    "what is computed": (
        "def train(whole, size):\n    for i, batch in enumerate(loader):\n        backward(batch)\n"
        "        if (i + 1) % (whole // size) == 0: step()\ntrain(15, 5)\n",
        set(),
    ),
}


@pytest.mark.parametrize("form", FUNCTIONS)
def test_what_decides_is_found_in_the_function_that_decides(form: str, tmp_path: Path) -> None:
    source, origins = FUNCTIONS[form]
    found = bounds_of(source, tmp_path)
    assert len(found) == 2
    for bound in found:
        assert bound is not None
        assert bound.steps == 3
        assert names(bound.origins) == origins


def test_the_length_of_the_data_is_no_k_under_any_name(tmp_path: Path) -> None:
    source = """
def train(number):
    for i, batch in enumerate(loader):
        backward(batch)
        if (i + 1) % number == 0: step()
batches = len(loader)
train(batches)
"""
    assert bounds_of(source, tmp_path) == [None]


def test_k_is_what_it_is_at_each_step(tmp_path: Path) -> None:
    source = """
def train():
    K, count = 2, 0
    for batch in loader:
        backward(batch)
        count += 1
        if count == K:
            step()
            K, count = K + 1, 0
train()
"""
    assert [bound and bound.steps for bound in bounds_of(source, tmp_path)] == [2, 3]


def test_nothing_of_the_users_is_run(tmp_path: Path) -> None:
    """Properties, ``__getattr__`` and subclasses of a dictionary are code: K is not known, its names are."""
    source = """
class Lazy(dict):
    def __getattr__(self, name): asked.append(name); return 3
    def __getitem__(self, name): asked.append(name); return 3
    def get(self, name, default=None): asked.append(name); return 3
class Config:
    @property
    def accum(self): asked.append("property"); return 3
class Open:
    def __getattribute__(self, name): asked.append(name); return 3
asked = []
for K in ["Lazy().accum", "Lazy()['accum']", "Lazy().get('accum')", "Config().accum", "Open().accum"]:
    owner = eval(K.partition(")")[0] + ")")
    before = len(asked)
    for i, batch in enumerate(loader):
        backward(batch)
        {test}
    turns = len(loader)
    assert len(asked) - before == turns, asked
"""
    for way in ("owner.accum", "owner['accum']", "owner.get('accum')"):
        kinds = '["Lazy()", "Config()", "Open()"]' if way == "owner.accum" else '["Lazy()"]'
        text = re.sub(r"\[\"Lazy\(\)\.accum\".*\]", kinds, source)
        found = bounds_of(text.format(test=f"if (i + 1) % {way} == 0: step()"), tmp_path)
        assert {bound and bound.steps for bound in found} == {None}
        assert all(bound is not None and "accum" in bound.origins for bound in found)


def test_the_loops_own_variables_are_let_go(tmp_path: Path) -> None:
    """To read K of a running function keeps nothing alive that the function has let go of."""
    source = """
import weakref
alive = []
def train(K):
    outputs = None
    for i, batch in enumerate(loader):
        output = model(batch[0])
        F.mse_loss(output, batch[1]).backward()
        if (i + 1) % K == 0:
            step()
            seen = weakref.ref(output)
            del output
            alive.append(seen() is not None)
train(3)
assert alive == [False, False], alive
"""
    assert [bound and bound.steps for bound in bounds_of(source, tmp_path)] == [3, 3]


def test_what_a_function_holds_of_its_own_variables_stays(tmp_path: Path) -> None:
    source = """
def train(K):
    config = locals()
    for i, batch in enumerate(loader):
        backward(batch)
        if (i + 1) % K == 0: step()
    assert config == {"K": 3}, config
train(3)
"""
    expected = 3 if sys.version_info >= (3, 13) else None
    found = bounds_of(source, tmp_path)
    assert [bound and bound.steps for bound in found] == [expected] * 2
    assert all(bound is not None and "K" in bound.origins for bound in found)


def test_a_function_that_evaluates_its_model_shows_what_it_divides_by(tmp_path: Path) -> None:
    # `eval` is a method here: Python's own might show the function a copy of its variables.
    source = """
def train(K):
    for i, (x, t) in enumerate(loader):
        loss = F.mse_loss(model(x), t) / K / len(x)
        loss.backward()
        if (i + 1) % K == 0: step()
        model.eval()
train(3)
"""
    assert {"batch_size"} in [factor.origins for factor in factors_of(source, tmp_path)]
    if sys.version_info < (3, 13):
        evaluated = source.replace("model.eval()", "eval('K')")
        assert {"batch_size"} not in [factor.origins for factor in factors_of(evaluated, tmp_path)]


def test_code_without_a_source(tmp_path: Path) -> None:
    loop = LOOP.format(test="if (i + 1) % K == 0: step()").replace(
        "backward(batch)", "(loss_of(*batch) / K).backward()"
    )
    events = events_of(f"exec({loop!r})\n", tmp_path, "both")
    assert [event.counted_by for event in events if isinstance(event, Step)] == [None, None]
    assert {f.origins for e in events if isinstance(e, Backward) for t in e.terms for f in t.factors} == {frozenset()}


# What a divisor comes from

DIVISIONS = [
    "loss = loss / {K}",
    "loss /= {K}",
    "loss = loss * (1 / {K})",
    "loss = loss * (1.0 / float({K}))",
    "loss = loss.div({K})",
    "loss = loss.div(other={K})",
    "loss.div_({K})",
    "loss = torch.div(loss, {K})",
    "loss = torch.mul(1 / {K}, loss)",
    "loss = torch.true_divide(loss, max({K}, 1))",
    "loss = (\n        loss\n        .div({K})\n    )",
]
DIVIDED = """
{head}
for x, t in loader:
    loss = loss_of(x, t)
    {division}
    loss.backward()
    step()
"""


@pytest.mark.parametrize("division", DIVISIONS)
def test_a_divisor_has_its_names_and_the_place_of_its_constant(division: str, tmp_path: Path) -> None:
    head = "accum = 3 #*\nK = accum"
    source = DIVIDED.format(head=head, division=division.format(K="K"))
    found = factors_of(source, tmp_path)
    for factor in found:
        assert factor.value == pytest.approx(1 / 3)
        assert names(factor.origins) == {"K", "accum"}
        assert any(origin.endswith(place(source, "3")) for origin in factor.origins)


@pytest.mark.parametrize(
    ("operand", "origins"),
    [
        ("args.accum", {"accum", "args.accum"}),
        ("given.every", {"every", "given.every", "grad_accum_steps"}),
        ("cfg['accum']", {"accum", "cfg['accum']"}),
        ("int(cfg['accum'])", {"accum", "cfg['accum']"}),
        ("config.training.accum", {"accum", "config.training.accum"}),
        ("(N or 1)", {"N"}),
        ("3", set()),
        ("(N + M - N)", set()),
        ("product", {"product"}),
        ("target", {"target"}),
        ("len(loader)", set()),
        ("numbers[0]", set()),
    ],
)
def test_the_names_of_a_divisor(operand: str, origins: set[str], tmp_path: Path) -> None:
    head = """N, M = 3, 3
product = N + 0
args = types.SimpleNamespace(accum=3)
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("-k", "--grad-accum-steps", dest="every", type=int, default=3)
given = parser.parse_args([])
cfg, numbers = {"accum": 3}, [3]
config = types.SimpleNamespace(training=args)
target = M
for target in [3]: pass"""
    found = factors_of(DIVIDED.format(head=head, division=f"loss = loss / {operand}"), tmp_path)
    assert found
    assert {frozenset(names(factor.origins)) for factor in found} == {frozenset(origins)}


def test_a_product_is_a_factor_for_each_of_its_sides(tmp_path: Path) -> None:
    head = "N, M = 3, 5\nproduct = N * M\nrows = [0] * 7"
    found = factors_of(DIVIDED.format(head=head, division="loss = loss / (N * M * len(rows))"), tmp_path)
    each = {(round(1 / factor.value), frozenset(names(factor.origins))) for factor in found if factor.value}
    assert each == {(3, frozenset({"N"})), (5, frozenset({"M"})), (7, frozenset())}


def test_one_constant_through_different_names(tmp_path: Path) -> None:
    """What the loss is divided by and what the steps are counted by is the same 3; the log's 3 is another."""
    source = """
K = 3 #*
LOG = 3
def train(every, divisor):
    for i, (x, t) in enumerate(loader):
        (loss_of(x, t) / divisor).backward()
        if (i + 1) % LOG == 0: print(i)
        if (i + 1) % every == 0: step()
train(K, divisor=K)
"""
    events = events_of(source, tmp_path, "both")
    bound = next(event.counted_by for event in events if isinstance(event, Step))
    factor = next(f for e in events if isinstance(e, Backward) for t in e.terms for f in t.factors)
    assert bound is not None
    shared = bound.origins & factor.origins
    assert names(shared) == {"K"}
    assert any(origin.endswith(place(source, "3")) for origin in shared)
    assert (names(bound.origins), names(factor.origins)) == ({"K", "every"}, {"K", "divisor"})


HOMES = {
    "a closure": "def train(accum):\n    def scaled(loss): return loss / accum\n    run(scaled)\nN = 3\ntrain(N)",
    "a method": (
        "class Trainer:\n    def __init__(self, accum): self.divisor = accum\n"
        "    def scaled(self, loss): return loss / self.divisor\n"
        "run(Trainer(3).scaled)"
    ),
    "a method of an object made with a name": (
        "class Trainer:\n    def __init__(self, accum): self.divisor = accum\n"
        "    def scaled(self, loss): return loss / self.divisor\n"
        "N = 3\nrun(Trainer(N).scaled)"
    ),
    "a method of one of two objects": (
        "class Trainer:\n    def __init__(self, accum): self.divisor = accum\n"
        "    def scaled(self, loss): return loss / self.divisor\n"
        "N, M = 3, 4\nTrainer(M)\nrun(Trainer(N).scaled)"
    ),
    "a comprehension": (
        "def train(accum):\n    run(lambda loss: sum([part / accum for part in [loss]]))\nN = 3\ntrain(N)"
    ),
    "another module's": "from math import tau as accum\nrun(lambda loss: loss / accum)",
    "what a global statement sets": (
        "def setup():\n    global accum\n    accum = 3\nsetup()\nrun(lambda loss: loss / accum)"
    ),
    "a sum that grows": "N = 3\naccum = N\naccum += 1\nrun(lambda loss: loss / accum)",
}


@pytest.mark.parametrize(
    ("home", "origins"),
    [
        ("a closure", {"accum", "N"}),
        ("a method", {"divisor", "self.divisor", "accum"}),
        ("a method of an object made with a name", {"divisor", "self.divisor", "accum", "N"}),
        ("a method of one of two objects", {"divisor", "self.divisor", "accum"}),
        ("a comprehension", {"accum", "N"}),
        ("another module's", {"accum", "tau"}),
        ("what a global statement sets", {"accum"}),
        ("a sum that grows", {"accum"}),
    ],
)
def test_where_a_divisor_is_bound(home: str, origins: set[str], tmp_path: Path) -> None:
    head = "def run(scaled):\n    for x, t in loader:\n        scaled(loss_of(x, t)).backward()\n        step()\n"
    found = factors_of(head + HOMES[home] + "\n", tmp_path)
    assert found
    assert {frozenset(names(factor.origins)) for factor in found} == {frozenset(origins)}


CALLS = {
    "by position": "scaled(loss, N)",
    "by name": "scaled(divisor=N, loss=loss)",
    "by another name": "(lambda f: f(loss, N))(scaled)",
    "through two": "outer(loss, N)",
    "a method": "Scaler().scaled(loss, N)",
    "a method of the class": "Scaler.scaled(Scaler(), loss, N)",
    "a static method": "Scaler.static(loss, N)",
    "an object that is called": "Scaler()(loss, N)",
    "wrapped": "wrapped(loss, N)",
    "decorated by torch": "decorated(loss, N)",
}
SCALED = """N = 3
heads = 7
def scaled(loss, divisor): return loss / divisor
def outer(loss, divisor): return scaled(divisor=divisor, loss=loss)
def passing(function):
    @functools.wraps(function)
    def inner(*args, **kwargs): return function(*args, **kwargs)
    return inner
@passing
def wrapped(loss, divisor): return loss / divisor
@torch.enable_grad()
def decorated(loss, divisor): return loss / divisor
class Scaler:
    def scaled(self, loss, divisor): return loss / divisor
    @staticmethod
    def static(loss, divisor): return loss / divisor
    def __call__(self, loss, divisor): return loss / divisor"""


@pytest.mark.parametrize("call", CALLS)
def test_what_a_caller_passes(call: str, tmp_path: Path) -> None:
    found = factors_of(DIVIDED.format(head=SCALED, division=f"loss = {CALLS[call]}"), tmp_path)
    assert {frozenset(names(factor.origins)) for factor in found} == {frozenset({"divisor", "N"})}


@pytest.mark.parametrize("call", ["scaled(loss, *[N])", "functools.partial(scaled, divisor=N)(loss)", "hidden(loss)"])
def test_what_a_call_does_not_show(call: str, tmp_path: Path) -> None:
    head = SCALED + "\nhidden = functools.partial(scaled, divisor=N)"
    found = factors_of(DIVIDED.format(head=head, division=f"loss = {call}"), tmp_path)
    assert {frozenset(names(factor.origins)) for factor in found} == {frozenset({"divisor"})}


def test_one_function_for_two_callers(tmp_path: Path) -> None:
    head = "N, heads = 3, 7\ndef scaled(loss, divisor): return loss / divisor"
    source = DIVIDED.format(head=head, division="loss = scaled(loss, N)\n    loss = scaled(loss, heads)")
    found = factors_of(source, tmp_path)
    by_value = {round(1 / (factor.value or 1)): names(factor.origins) for factor in found}
    assert by_value == {3: {"divisor", "N"}, 7: {"divisor", "heads"}}


GRADIENTS = [
    "for p in model.parameters(): p.grad.div_(divisor)",
    "for p in model.parameters(): p.grad /= divisor",
    "for p in model.parameters(): p.grad.mul_(1 / divisor)",
    "for p in model.parameters(): p.grad.data.div_(divisor)",
    "for p in model.parameters(): p.grad = p.grad / divisor",
    "for p in model.parameters(): p.grad = (1 / divisor) * p.grad",
    "for p in model.parameters(): p.grad[:] = p.grad / divisor",
    "[p.grad.div_(divisor) for p in model.parameters()]",
    "torch._foreach_div_([p.grad for p in model.parameters()], divisor)",
    "torch._foreach_mul_([p.grad for p in model.parameters()], 1.0 / divisor)",
]


@pytest.mark.parametrize("scaling", GRADIENTS)
@pytest.mark.parametrize("under", ["", "with torch.no_grad(): "])
def test_a_divisor_of_gradients(scaling: str, under: str, tmp_path: Path) -> None:
    inner = "\n    ".join(["with torch.no_grad():", f"    {scaling}"]) if under else scaling
    source = f"""
def scale(divisor):
    {inner}
K = 3
for i, batch in enumerate(loader):
    loss_of(*batch).backward()
    if (i + 1) % K == 0:
        scale(K); step()
"""
    found = [e.factor for e in events_of(source, tmp_path, "both") if isinstance(e, ScaleGrads)]
    assert [factor.value for factor in found] == [pytest.approx(1 / 3)] * 2
    assert {frozenset(names(factor.origins)) for factor in found} == {frozenset({"divisor", "K"})}


def test_gradients_that_are_scaled_twice(tmp_path: Path) -> None:
    """Two numbers make a third, which has no name."""
    source = """
K, M = 3, 0.7
for i, batch in enumerate(loader):
    loss_of(*batch).backward()
    if (i + 1) % K == 0:
        for p in model.parameters(): p.grad.div_(K); p.grad.mul_(M)
        step()
"""
    found = [e.factor for e in events_of(source, tmp_path, "both") if isinstance(e, ScaleGrads)]
    assert [(factor.value, factor.origins) for factor in found] == [(pytest.approx(0.7 / 3), frozenset())] * 2


def test_a_framework_is_read_but_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it divides by has the name that is there; who gave it that is not the user's to know."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "frame_of_work.py").write_text(
        "class Trainer:\n"
        "    def __init__(self, steps): self.gradient_accumulation_steps = steps\n"
        "    def backward(self, loss): scaled(loss / self.gradient_accumulation_steps, 2).backward()\n"
        "def scaled(loss, temperature): return loss / temperature\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    source = """
from frame_of_work import Trainer
N = 3
trainer = Trainer(N)
for i, batch in enumerate(loader):
    trainer.backward(loss_of(*batch))
    if (i + 1) % N == 0: step()
"""
    own = {"gradient_accumulation_steps", "self.gradient_accumulation_steps"}
    found = factors_of(source, tmp_path)
    by_value = {round(1 / (factor.value or 1)): factor.origins for factor in found}
    assert by_value == {3: own, 2: {"temperature"}}


LINES_ALONE = ["a modulus", "an or", "an else", "a guard", "a name of the test", "a test around others", "a lambda"]


@pytest.mark.parametrize("form", LINES_ALONE)
def test_python_that_keeps_no_columns(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.10, or any without its debug ranges: a place is a line."""
    monkeypatch.setattr(syntax, "_span", lambda code, instruction, line: (line, None, line, None))
    test = DECIDED[form] + "\n    if (i + 1) % 2 == 0: print(i)"
    source = LOOP.format(test=test).replace("backward(batch)", "(loss_of(*batch) / K).backward()")
    events = events_of(source, tmp_path, "both")
    bounds = [event.counted_by for event in events if isinstance(event, Step)]
    assert [bound and bound.steps for bound in bounds] == [3] * len(bounds)
    factors = [f for e in events if isinstance(e, Backward) for t in e.terms for f in t.factors]
    assert {frozenset(names(factor.origins)) for factor in factors} == {frozenset({"K"})}


def test_a_mean_of_losses_has_no_names(tmp_path: Path) -> None:
    source = "losses = [loss_of(*batch) for batch in loader]\ntorch.mean(torch.stack(losses)).backward()\nstep()\n"
    assert {origin for factor in factors_of(source, tmp_path) for origin in factor.origins} == set()


NOTHING_BUT_LINES = """\
K = 4
for i in range(8):
    x, t = X[i * 3 : i * 3 + 3], T[i * 3 : i * 3 + 3]
    (F.mse_loss(model(x), t) / K + 0.01 * model.weight.pow(2).sum()).backward()
    if (i + 1) % K == 0: optimizer.step(); optimizer.zero_grad()
"""


def test_where_python_keeps_lines_alone_the_numbers_of_a_line_are_told_apart(tmp_path: Path) -> None:
    """So it is on 3.10, and on any later Python that is asked for it."""
    (tmp_path / "train.py").write_text(HEAD + NOTHING_BUT_LINES, encoding="utf-8")
    command = [sys.executable, "-X", "no_debug_ranges", "-m", "gradcheck_accum", "verify", "train.py"]
    environment = {**os.environ, "PYTHONNODEBUGRANGES": "1"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    # K divides the mean alone, 0.01 is the penalty's own: the penalty counts 4 times.
    assert "divide the loss by 4" in ended.stdout, ended.stdout + ended.stderr
    assert "could not be read off its graph" not in ended.stdout


SEVERAL = """\
def f(a, b, c, *more, **named):
    x = a * b / c + b.g(a / 2).h(*more, k=c * 3) * (lambda v: v / c)(b)
    x /= c(a)(b); y = [b * n / c for n in more if n(a * 2)]
    try:
        return x * y if a(b) and c(a / b) else -x
    finally:
        b.closed(a * (1 / c))
@named(1 / 2)
def g(a): return (a / 3 if
    a * 2 else a.b(
    )(a) / 4)
"""


@pytest.mark.skipif(not hasattr(CodeType, "co_positions"), reason="Python 3.10 keeps no columns to compare with")
def test_an_instruction_has_the_node_that_pythons_own_columns_say() -> None:
    tree = ast.parse(SEVERAL)
    found = numbered.Numbered("several.py", tree)
    # Python 3.12 compiles the return of a try by its lines: what does not come out alike is unknown, and never wrong.
    is_whole = sys.version_info[:2] != (3, 12)
    ours = [n for n in ast.walk(tree) if isinstance(n, (ast.BinOp, ast.AugAssign, ast.Call))]
    compared = set()
    pending = [compile(SEVERAL, "several.py", "exec", dont_inherit=True)]
    while pending:
        code = pending.pop()
        pending += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        places = list(code.co_positions())
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("BINARY_OP", "CALL", "CALL_FUNCTION_EX", "CALL_KW"):
                first, last, _, end = places[instruction.offset // 2]
                # A method's call begins at its name in the columns of newer Pythons. A comprehension is called too.
                its = [n for n in ours if (n.lineno, n.end_lineno, n.end_col_offset) == (first, last, end)]
                node = found.node(code, instruction.offset)
                assert node in its or (node is None and not (its and is_whole)), ast.dump(node or tree)
                compared.add(node)
    # The halves that Python has worked out beforehand are no instruction.
    wanted = {n for n in ours if not (isinstance(n, ast.BinOp) and isinstance(n.left, ast.Constant))}
    assert wanted <= compared or not is_whole


@pytest.mark.parametrize("reference", ["ledger", "sketch", "both"])
@pytest.mark.parametrize(("coefficient", "codes"), [("TEMPERATURE", set()), ("K", {"GA102"})])
def test_the_source_is_read_whatever_the_gradients_are_compared_with(
    coefficient: str, codes: set[str], reference: ReferenceName, tmp_path: Path
) -> None:
    """A constant of the objective that equals K is none, where nothing is run again too."""
    source = f"""
import torch
K = 8
TEMPERATURE = 8
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(16):
    x, y = torch.randn(1, 4), torch.randn(1, 3)
    loss = torch.nn.functional.smooth_l1_loss(model(x), y) / {coefficient}
    loss.backward()
    if (i + 1) % K == 0:
        for p in model.parameters():
            p.grad.div_(K)
        optimizer.step()
        optimizer.zero_grad()
"""
    result = watch_source(source, tmp_path, reference=reference)
    assert result.verdict.value == ("deviates" if codes else "equivalent")
    assert {d.mistake.code for d in result.diagnosis} == codes
