"""Counters that go on from a number that the source does not show, and training functions that yield."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

LOOP = """\
import torch

def train(model, optimizer, loader, args):
    step = {start}
    for epoch in range(args.start, args.epochs):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y){divided}
            loss.backward()
            {before}
            if step % args.every == 0:
                optimizer.step()
                optimizer.zero_grad()
            {after}
"""
STARTS = ["args.start * len(loader)", "args.start * args.per_epoch", "load(args)['step']"]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("before", "after"), [("step += 1", "pass"), ("pass", "step += 1")])
def test_a_counter_may_begin_anywhere(start: str, before: str, after: str) -> None:
    wrong = LOOP.format(start=start, divided="", before=before, after=after)
    right = LOOP.format(start=start, divided=" / args.every", before=before, after=after)
    assert codes_in(wrong) == ["GA101"]
    # Where it begins is not known: neither is whether its first window is short.
    assert lint_source(right, "train.py") == []


def test_a_counter_that_begins_at_0_and_is_tested_before_it_is_raised() -> None:
    source = LOOP.format(start="0", divided=" / args.every", before="pass", after="step += 1")
    assert codes_in(source) == ["GA302"]


RANGE = """\
import torch

class Training:
    def __init__(self, model, optimizer, loader, iterations, every):
        self.model, self.optimizer, self.loader, self.every = model, optimizer, loader, every
        self.first, self.last = iterations
        self.iterator = iter(loader)

    def run(self):
        self.optimizer.zero_grad()
        for i in range({first}, self.last + 1):
            x, y = next(self.iterator)
            loss = torch.nn.functional.mse_loss(self.model(x), y){divided}
            loss.backward()
            if {test} % self.every == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
"""


@pytest.mark.parametrize("test", ["i", "(i + 1)"])
@pytest.mark.parametrize(("divided", "codes"), [(" / self.every", []), ("", ["GA101"])])
def test_a_range_that_begins_where_nothing_shows_is_counted_as_its_test_does(
    test: str, divided: str, codes: list[str]
) -> None:
    assert codes_in(RANGE.format(first="self.first", test=test, divided=divided)) == codes


def test_a_range_that_begins_at_0_is_not() -> None:
    assert "GA302" in codes_in(RANGE.format(first="0", test="i", divided=" / self.every"))


GENERATOR = """\
import torch

def train(model, optimizer, loader, K=3):
    yield "begun"
    for epoch in range(2):
        for i, (x, y) in enumerate(loader[:9]):
            loss = torch.nn.functional.mse_loss(model(x), y){divided}
            loss.backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
        yield epoch, loss.item()
"""


@pytest.mark.parametrize(("divided", "codes"), [(" / K", []), ("", ["GA101"])])
@pytest.mark.parametrize(
    "caller", ["", "\ndef main(m, o, data):\n    for state in train(m, o, data):\n        print(state)\n"]
)
def test_a_training_function_may_yield(caller: str, divided: str, codes: list[str]) -> None:
    source = GENERATOR.format(divided=divided) + caller
    found = codes_in(source)
    assert [code for code in found if code != "GA301"] == codes


RESTORED = """\
from torch import nn

def train(args, settings, net, loader, optimizer):
    every = settings["accumulation_steps"]
    turn = args.restored + 1
    for _ in range(args.epochs):
        for x, y in loader:
            loss = nn.functional.mse_loss(net(x), y) / every
            loss.backward()
            if turn % every == 0:
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                {inside}
            {each}
            turn += 1
"""
UPDATE = "optimizer.step(); optimizer.zero_grad()"


def test_a_counter_from_elsewhere_by_which_a_loop_only_clips() -> None:
    assert codes_in(RESTORED.format(inside="pass", each=UPDATE)) == ["GA304"]
    assert codes_in(RESTORED.format(inside=UPDATE, each="pass")) == []
    assert codes_in(RESTORED.replace(" / every", "").format(inside=UPDATE, each="pass")) == ["GA101"]
    assert codes_in(RESTORED.replace(" / every", "").format(inside="pass", each=UPDATE)) == []


GIVEN_ITS_COUNT = """\
from torch import nn

{head}({given}, batch, optimizer, every, turn):
    {before}
    out = {net}(batch["x"])
    loss = nn.functional.mse_loss(out, batch["y"]) / every
    loss.backward()
    {each}
    if {closes}:
        {inside}
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach() * every
"""
PLAIN = {"head": "def one_batch", "given": "net", "net": "net"}
CLIP = "nn.utils.clip_grad_norm_(net.parameters(), 1.0)"


def given_its_count(**places: str) -> list[str]:
    defaults = PLAIN | {"before": "pass", "each": "pass", "inside": "pass", "closes": "turn % every == 0"}
    return codes_in(GIVEN_ITS_COUNT.format(**(defaults | places)))


@pytest.mark.parametrize("closes", ["turn % every == 0", "(turn + 1) % every == 0", "not (turn % every)"])
def test_each_call_of_a_function_that_is_given_its_count_is_a_micro_batch(closes: str) -> None:
    assert given_its_count(closes=closes) == []
    assert given_its_count(closes=closes, inside=CLIP) == []
    assert given_its_count(closes=closes, each=CLIP) == ["GA401"]
    assert given_its_count(closes=closes, before="optimizer.zero_grad()") == ["GA201"]


def test_so_is_one_of_a_method() -> None:
    method = {"head": "class One(nn.Module):\n  def of", "given": "self", "net": "self"}
    clips = "nn.utils.clip_grad_norm_(self.parameters(), 1.0)"
    assert given_its_count(**method, each=clips) == ["GA401"]
    assert given_its_count(**method, inside=clips) == []


def test_a_loss_that_such_a_function_makes_it_alone_can_divide() -> None:
    undivided = GIVEN_ITS_COUNT.replace(" / every", "")
    places = PLAIN | {"before": "", "each": "", "inside": "", "closes": "turn % every == 0"}
    assert codes_in(undivided.format(**places)) == ["GA101"]
    # One that it is given may have been divided already, and may be a part of something else.
    given = undivided.replace("batch,", "loss,").replace('    out = {net}(batch["x"])\n', "")
    given = given.replace('    loss = nn.functional.mse_loss(out, batch["y"])\n', "")
    assert codes_in(given.format(**places)) == []
    weighted = undivided.replace("turn):", "turn, share):").replace('batch["y"])', 'batch["y"]) * share')
    assert codes_in(weighted.format(**places)) == []


def test_what_else_such_a_function_leaves_to_its_callers_is_no_mistake() -> None:
    # Neither what is left over at the end, nor what is cleared before the first call.
    assert given_its_count(closes="turn % every == 0", inside="pass") == []
    # What steps in each call is a window, whatever else the count decides on.
    shown = "print(turn)\n    optimizer.step(); optimizer.zero_grad()\n    if turn < 0"
    assert given_its_count(each=CLIP, closes=f"turn % every == 0: {shown}") == []


KEEPS_ITS_COUNT = """\
from torch import nn

class Stepper:
    def __init__(self, net, optimizer, every, begun):
        self.net, self.optimizer, self.every = net, optimizer, every
        self.turns = {start}

    def one(self, batch):
        loss = nn.functional.mse_loss(self.net(batch["x"]), batch["y"])
        return self.{calls}(loss)

    def use(self, loss):
        {divided}.backward()
        {before}
        if {tested} % self.every == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        {after}
        return loss.item()
"""
RAISED = "self.turns += 1"


def keeps_its_count(**places: str) -> list[str]:
    defaults = {
        "start": "0", "calls": "use", "divided": "(loss / self.every)", "before": "pass", "tested": "self.turns",
        "after": "pass",
    }  # fmt: skip
    return codes_in(KEEPS_ITS_COUNT.format(**(defaults | places)))


def test_a_count_that_a_method_keeps_may_be_kept_in_what_it_calls() -> None:
    assert keeps_its_count(before=RAISED) == []
    assert keeps_its_count(before=RAISED, divided="loss") == ["GA101"]
    assert keeps_its_count(before=RAISED, divided="(loss / self.every / self.every)") == ["GA102"]
    # Who is handed a loss does not know what is in it.
    assert keeps_its_count(before=RAISED, divided="loss", calls="another") == []


def test_where_such_a_count_begins_says_how_long_the_first_window_is() -> None:
    assert keeps_its_count(after=RAISED) == ["GA302"]
    assert keeps_its_count(after=RAISED, tested="(self.turns + 1)") == []
    # It may begin anywhere.
    assert keeps_its_count(after=RAISED, start="begun") == []
    assert keeps_its_count(before=RAISED, start="begun") == []


def test_a_function_that_the_file_calls_is_judged_as_it_is_called() -> None:
    calls = """
def main(net, loader, optimizer):
    for batch in loader:
        one_batch(net, batch, optimizer, 1, 0)
"""
    text = GIVEN_ITS_COUNT.format(**PLAIN, before="", each=CLIP, inside="", closes="turn % every == 0")
    assert codes_in(text) == ["GA401"]
    assert codes_in(text + calls) == []
