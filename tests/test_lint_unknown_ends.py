"""Loops whose data, settings or end come from elsewhere: what that leaves known, and what it does not."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import json
import torch
import torch.nn.functional as F

"""
LOOPS = labelled_loops("""\
#: GA302: an endless stream whose first window is short
def pretrain(opts, net, feed):
    opt = torch.optim.AdamW(net.parameters())
    seen, updates = 0, 0
    net.zero_grad()
    while True:
        sample = next(feed)
        seen += 1
        loss = net(**sample)[0] / opts.accumulation_steps
        loss.backward()
        if (seen + 1) % opts.accumulation_steps == 0:
            opt.step()
            opt.zero_grad()
            updates += 1
        if opts.most_updates > 0 and updates > opts.most_updates:
            break

#= right: an endless stream
-        if (seen + 1) % opts.accumulation_steps == 0:
+        if seen % opts.accumulation_steps == 0:

#: GA301: passes that an endless loop starts again leak
def pretrain(opts, net, loader):
    opt = torch.optim.AdamW(net.parameters())
    updates = 0
    while True:
        for turn, sample in enumerate(loader):
            loss = net(**sample)[0] / opts.accumulation_steps
            loss.backward()
            if (turn + 1) % opts.accumulation_steps == 0:
                opt.step()
                opt.zero_grad()
                updates += 1
        if updates >= opts.most_updates:
            break

#= GA301: passes that an endless loop starts again leak, whichever loop is left
                 updates += 1
+            if updates >= opts.most_updates:
+                break

#: right: a count that goes on through the passes
def pretrain(opts, net, loader):
    opt = torch.optim.AdamW(net.parameters())
    updates, turn = 0, 0
    while True:
        for sample in loader:
            turn += 1
            loss = net(**sample)[0] / opts.accumulation_steps
            loss.backward()
            if turn % opts.accumulation_steps == 0:
                opt.step()
                opt.zero_grad()
                updates += 1
            if updates >= opts.most_updates:
                break
        if updates >= opts.most_updates:
            break

#: GA301: a bar with a parent
from fastbars import inner_bar, outer_bar

def finetune(opts, net, data):
    loader = torch.utils.data.DataLoader(data, batch_size=opts.batch_size)
    opt = torch.optim.AdamW(net.parameters())
    outer = outer_bar(range(opts.rounds))
    for _ in outer:
        bar = inner_bar(loader, parent=outer)
        for turn, (x, y) in enumerate(bar):
            loss = F.cross_entropy(net(x), y) / opts.accumulation_steps
            loss.backward()
            if (turn + 1) % opts.accumulation_steps == 0:
                opt.step()
                opt.zero_grad()

#= right: a bar with a parent, cleared and flushed
         bar = inner_bar(loader, parent=outer)
+        left = len(loader) % opts.accumulation_steps
         for turn, (x, y) in enumerate(bar):
-            loss = F.cross_entropy(net(x), y) / opts.accumulation_steps
+            whole = turn + left < len(loader)
+            loss = F.cross_entropy(net(x), y) / (opts.accumulation_steps if whole else left)
             loss.backward()
-            if (turn + 1) % opts.accumulation_steps == 0:
+            if (turn + 1) % opts.accumulation_steps == 0 or turn + 1 == len(loader):

#: GA101: one of several loaders
def one_round(loader, net, opt, every):
    opt.zero_grad()
    for turn, (x, y) in enumerate(loader):
        F.cross_entropy(net(x), y).backward()
        if (turn + 1) % every == 0 or turn + 1 == len(loader):
            opt.step()
            opt.zero_grad()

def train(loaders, net, opt, cfg):
    for _ in range(cfg.rounds):
        one_round(loaders[0], net, opt, cfg.accumulation_steps)

#: right: one of several loaders, every micro-batch steps
def one_round(loader, net, opt, every):
    for turn, (x, y) in enumerate(loader):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        if (turn + 1) % every == 0 or turn + 1 == len(loader):
            print(turn)

def train(loaders, net, opt, cfg):
    for _ in range(cfg.rounds):
        one_round(loaders[0], net, opt, cfg.log_every)

#: GA301: settings in a dictionary with attributes
from attrdict import AttrDict

def finetune(opts, net, loader):
    opt = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        for turn, (x, y) in enumerate(loader):
            loss = F.cross_entropy(net(x), y) / opts.accumulation_steps
            loss.backward()
            if (turn + 1) % opts.accumulation_steps == 0:
                opt.step()
                opt.zero_grad()

def main(path, net, loader):
    with open(path) as file:
        opts = AttrDict(json.load(file))
    finetune(opts, net, loader)

main("a.json", make_net(), make_loader())

#: right: a criterion that sums, in a dictionary's settings, which may be right
from easydict import EasyDict

class BoxLoss(torch.nn.Module):
    def forward(self, found, wanted):
        place = F.mse_loss(found[..., :4], wanted[..., :4], reduction="sum")
        kind = F.binary_cross_entropy(found[..., 4:], wanted[..., 4:], reduction="sum")
        return place + kind, place, kind

def train(net, loader, opts):
    criterion = BoxLoss()
    opt = torch.optim.SGD(net.parameters(), lr=opts.lr / opts.batch)
    turn = 0
    for _ in range(opts.rounds):
        for x, y in loader:
            turn += 1
            loss, place, kind = criterion(net(x), y)
            loss.backward()
            if turn % opts.subdivisions == 0:
                opt.step()
                net.zero_grad()

train(make_net(), make_loader(), EasyDict(read_settings()))

#: GA301: rows by the batch size
def fit(net, rows, labels, rounds, batch_size, accumulation_steps):
    count = len(rows) // batch_size
    opt = torch.optim.AdamW(net.parameters())
    for _ in range(rounds):
        order = torch.randperm(len(rows))
        for turn in range(count):
            chosen = order[turn * batch_size : (turn + 1) * batch_size]
            loss = F.cross_entropy(net(rows[chosen]), labels[chosen]) / accumulation_steps
            loss.backward()
            if (turn + 1) % accumulation_steps == 0:
                opt.step()
                opt.zero_grad()

#: right: a pass that is as long as the rows say, its remainder divided by its length
def fit(net, data, loader, batch_size, accumulation_steps):
    opt = torch.optim.AdamW(net.parameters())
    count = len(data) // batch_size
    for _ in range(3):
        for turn, (x, y) in enumerate(loader):
            begin = turn - turn % accumulation_steps
            loss = F.cross_entropy(net(x), y) / min(accumulation_steps, count - begin)
            loss.backward()
            if (turn + 1) % accumulation_steps == 0 or turn + 1 == count:
                opt.step()
                opt.zero_grad()

#: right: a model that is an engine in another branch
class Trainer:
    def __init__(self, opts):
        self.every, self.turn = opts.accumulation_steps, 1

    def loss_of(self, batch, model):
        raise NotImplementedError

    def train(self, opts, loader, model, optimizer):
        model.train()
        feed = iter(loader)
        while True:
            if self.turn == opts.total_steps + 1:
                break
            loss = self.loss_of(next(feed), model) / self.every
            if opts.deepspeed:
                model.backward(loss)
            else:
                loss.backward()
            if self.turn % self.every == 0:
                if opts.deepspeed:
                    model.step()
                else:
                    optimizer.step()
                    model.zero_grad()
            self.turn += 1

#: GA204: another model is cleared than the one that steps
def train(teacher, student, loader, rounds):
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    second = torch.optim.SGD(teacher.parameters(), lr=0.1)
    teacher.train()
    student.train()
    for x, y in loader:
        (F.cross_entropy(student(x), y) + F.cross_entropy(teacher(x), y)).backward()
        optimizer.step()
        second.step()
        teacher.zero_grad()
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_a_loop(loop: LabelledLoop) -> None:
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes


REPORTS_AFTERWARDS = """\
import argparse
import torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--accum", type=int, default=4)
args = parser.parse_args()
STEPS = 3000
model, criterion = nn.Linear(6, 3), nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.load("data.pt"), batch_size=5)
for epoch in range(STEPS // (len(loader) // args.accum) + 1):
    for i, (x, y) in enumerate(loader):
        {work}
        (criterion(model(x), y){scaled}).backward()
        if (i + 1) % args.accum == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
results = torch.load("results.pt")
for i in range(1, STEPS):
    step = i * 100
    {report}
    print(step, results[f"precision_{{step}}"], results[f"recall_{{step}}"], results[f"f1_{{step}}"])
"""


COUNTED_ON = """\
import itertools
import torch
def train(net, opt, draw, accumulate=5, most_updates=6):
    updates = 0
    for n in {numbers}:
        x, y = draw()
        (torch.nn.functional.mse_loss(net(x), y) / accumulate).backward()
        if {boundary}:
            opt.step()
            opt.zero_grad()
            updates += 1
            if updates == most_updates:
                {end}
train(torch.nn.Linear(3, 3), torch.optim.SGD(net.parameters()), feed)
"""


@pytest.mark.parametrize(
    ("numbers", "boundary", "end", "codes"),
    [
        ("itertools.count(1)", "n % accumulate == 0", "break", []),
        ("itertools.count()", "(n + 1) % accumulate == 0", "return", []),
        ("itertools.count(1)", "(n + 1) % accumulate == 0", "break", ["GA302"]),
        ("range(1, 10000)", "n % accumulate == 0", "break", []),
        ("range(1, 10000)", "n % accumulate == 0", "print(updates)", ["GA301"]),
        # The break is an inner loop's.
        ("range(1, 10000)", "n % accumulate == 0", "[print(i) for i in range(3)]", ["GA301"]),
    ],
)
def test_where_a_break_ends_a_count_its_end_is_none_of_the_data(
    numbers: str, boundary: str, end: str, codes: list[str]
) -> None:
    assert codes_in(COUNTED_ON.format(numbers=numbers, boundary=boundary, end=end)) == codes


@pytest.mark.parametrize(
    "report", ["pass", "print(results[f'loss_{step}'], results[f'rate_{step}'], results.get(step))"]
)
@pytest.mark.parametrize(("scaled", "expected"), [("", ["GA101"]), (" / args.accum", ["GA103"])])
def test_a_long_report_after_the_training_keeps_nothing_from_being_analyzed(
    scaled: str, expected: list[str], report: str
) -> None:
    work = "\n        ".join(f"a{n} = [t.abs() for t in (x, y, x, y, x, y, x, y)]" for n in range(110))
    source = REPORTS_AFTERWARDS.format(scaled=scaled, report=report, work=work)
    assert codes_in(source) == expected


COUNTED_BY_NAME = """\
import torch
import torch.nn.functional as F

class Task:
    def report(self, things, every):
        done = 0
        for thing in things:
            yield thing
            if done % every == 0 or done == len(things) - 1:
                print(done, len(things))
            done += 1

    def one_epoch(self, net, feed, optimizer, plan, window=1):
        return self.inner(net, iter(feed), optimizer, plan.{name}, window)

    def inner(self, net, feed, optimizer, turns, window):
        for i in {over}:
            {guard}
            x, t = next(feed)
            (F.mse_loss(net(x), t) / window).backward()
            if {boundary}:
                optimizer.step()
                optimizer.zero_grad()
"""


@pytest.mark.parametrize("over", ["range(turns)", "self.report(range(turns), 50)"])
@pytest.mark.parametrize("guard", ["pass", "if i >= turns: break"])
@pytest.mark.parametrize(
    ("name", "boundary", "codes"),
    [
        ("iters_per_epoch", "(i + 1) % window == 0", ["GA301"]),
        ("iters_per_epoch", "(i + 1) % window == 0 or i + 1 == turns", ["GA103"]),
        # So many steps in all may be whole windows.
        ("most_turns", "(i + 1) % window == 0", []),
    ],
)
def test_what_is_called_the_number_of_a_pass_is_its_length(
    name: str, boundary: str, codes: list[str], over: str, guard: str
) -> None:
    assert codes_in(COUNTED_BY_NAME.format(name=name, over=over, guard=guard, boundary=boundary)) == codes


def test_a_multiple_of_k_leaves_nothing_over() -> None:
    text = COUNTED_BY_NAME.format(
        name="iters_per_epoch", over="range(turns * window)", guard="pass", boundary="(i + 1) % window == 0"
    )
    assert codes_in(text) == []


GIVEN_BACK = """\
import torch.nn.functional as F

class Runner:
    def __init__(self, net, optimizer, scaler, loader, plan, every):
        self.net, self.optimizer, self.scaler = net, optimizer, scaler
        self.loader, self.plan, self.every = loader, plan, every

    def run(self, epochs):
        for epoch in range(epochs):
            for i, (x, t) in enumerate(self.loader):
                {rate}
                loss = F.mse_loss(self.net(x), t){scale}
                self.scaler.scale(loss).backward()
                if (i + 1) % self.every == 0 or i + 1 == len(self.loader):
                    self.scaler.unscale_({given}self.optimizer)
                    self.scaler.step({given}self.optimizer)
                    self.scaler.update()
                    self.optimizer.zero_grad()
"""


@pytest.mark.parametrize("given", ["", "optimizer="])
@pytest.mark.parametrize(
    "rate", ["pass", "self.optimizer = self.plan.update_lr(optimizer=self.optimizer, epoch=epoch)"]
)
@pytest.mark.parametrize(("scale", "codes"), [("", ["GA101"]), (" / self.every", ["GA103"])])
def test_an_optimizer_by_its_name_and_given_back(scale: str, codes: list[str], rate: str, given: str) -> None:
    assert codes_in(GIVEN_BACK.format(scale=scale, rate=rate, given=given)) == codes


COUNTED = """
def train(model, data, optimizer, criterion, args, K):
    total = {total}
    held = 0
    for i in range({first}total):
        x, y = data.get_batch()
        {loss}.backward()
        held += 1
        if (i + 1) % K == 0{last}:
            {gradients}
            optimizer.step()
            optimizer.zero_grad()
            held = 0
        if (i + 1) % args.every == 0 or i + 1 == total:
            print(i)
"""
ENDS = pytest.mark.parametrize("last", [" or i + 1 == total", " or i == total - 1", " or (i + 1 >= total)"])
MEAN = "(criterion(model(x), y) / K)"


def counted(
    last: str, loss: str = MEAN, total: str = "args.total", gradients: str = "pass", first: str = ""
) -> list[str]:
    return codes_in(COUNTED.format(last=last, loss=loss, total=total, gradients=gradients, first=first))


@ENDS
def test_who_steps_at_the_end_of_a_count_too_says_that_it_may_come_within_a_window(last: str) -> None:
    assert counted(last) == ["GA103"]
    assert counted(last, first="args.first, ") == ["GA103"]
    by_number = "[p.grad.div_(held) for p in model.parameters()]"
    assert counted(last, loss="criterion(model(x), y)", gradients=by_number) == []


def test_who_does_not_step_there_ends_with_a_window() -> None:
    assert counted("") == []
    assert counted("", first="args.first, ") == []


@ENDS
def test_a_count_of_whole_windows_ends_with_one(last: str) -> None:
    assert counted(last, total="args.updates * K") == []


LEFT_BY_COUNT = """\
import torch
import torch.nn.functional as F

class Trainer:
    def one_round(self, net, loader):
        kept = []
        waiting = 0
        {begin}
        for i, (x, t) in enumerate(loader):
            loss = F.mse_loss(net(x), t) / self.config["gradacc"]
            kept.append({kept})
            loss.backward()
            waiting += 1
            if waiting == self.config["gradacc"]:
                waiting = 0
                self.optimizer.step()
                self.optimizer.zero_grad()
            if {left}:
                break
        {flush}
        return torch.stack(kept).mean()

    def run(self, net, loader):
        self.optimizer = torch.optim.Adam(net.parameters())
        for _ in range(self.config["rounds"]):
            self.one_round(net, loader)
"""


def left_by_count(**places: str) -> list[str]:
    defaults = {"begin": "pass", "kept": "loss.detach()", "left": "(i + 1) % self.turns == 0", "flush": "pass"}
    return codes_in(LEFT_BY_COUNT.format(**(defaults | places)))


def test_what_a_pass_is_left_by_is_no_window() -> None:
    assert left_by_count() == ["GA301"]
    assert left_by_count(begin="self.optimizer.zero_grad()") == ["GA301"]
    assert left_by_count(kept="loss") == ["GA801", "GA301"]
    assert left_by_count(flush="self.optimizer.step(); self.optimizer.zero_grad()") == ["GA103"]
    # The source may show that such a pass has whole windows, and what ends in a window is one.
    whole = LEFT_BY_COUNT.replace('self.config["gradacc"]', "4")
    places = {"begin": "pass", "kept": "loss.detach()", "flush": "pass"}
    assert codes_in(whole.format(left="(i + 1) % 8 == 0", **places)) == []
    assert codes_in(whole.format(left="(i + 1) % 10 == 0", **places)) == ["GA301"]


def test_what_a_loop_without_a_step_is_left_by_is_its_window() -> None:
    text = """\
def train(net, loader, optimizer, turns, every):
    for _ in range(turns):
        optimizer.zero_grad()
        for i, batch in enumerate(loader):
            (net(batch).mean(){scale}).backward()
            if (i + 1) % every == 0:
                break
        optimizer.step()
"""
    assert codes_in(text.format(scale=" / every")) == []
    assert codes_in(text.format(scale="")) == ["GA101"]


COUNTED_OUT = """
from torch import nn

held, rows = 64, 8
accumulate = held // rows
last = 1000 * accumulate

def train(net, opt, loader{parameter}):
    ran = 0
    for u, t in loader:
        {before}
        (nn.functional.mse_loss(net(u), t) / accumulate).backward()
        if (ran + 1) % accumulate == 0:
            opt.step()
            opt.zero_grad()
        {after}
"""
GOES_ON = "ran += 1"


@pytest.mark.parametrize(
    ("parameter", "before", "after", "expected"),
    [
        ("", "if ran >= last: break", GOES_ON, []),
        (", accumulate", "if ran >= 1000 * accumulate: break", GOES_ON, []),
        ("", "pass", f"{GOES_ON}\n        if ran == last: break", []),
        # One more than whole windows.
        ("", "if ran > last: break", GOES_ON, ["GA301"]),
        ("", "if ran >= last + 1: break", GOES_ON, ["GA301"]),
        ("", "pass", f"if ran >= last: break\n        {GOES_ON}", ["GA301"]),
        # A number of windows of another length.
        (", accumulate", "if ran >= last: break", GOES_ON, ["GA301"]),
    ],
)
def test_an_only_pass_that_ends_at_a_count_of_whole_windows_leaves_nothing_over(
    parameter: str, before: str, after: str, expected: list[str]
) -> None:
    loop = COUNTED_OUT.format(parameter=parameter, before=before, after=after)
    assert sorted(set(codes_in(loop))) == expected
