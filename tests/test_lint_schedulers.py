"""GA601 and GA603: schedules whose length the source shows, moved per micro-batch or per step."""

from __future__ import annotations

import pytest
from loops_with_places import WINDOWS_IN_EPOCHS, codes_in, filled

from gradcheck_accum.lint import lint_source

LOOP = (
    """\
import math
import torch
import transformers
from accelerate import Accelerator
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, StepLR

def train(model, loader, criterion, epochs, K, accelerator):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = {scheduler}
"""
    + WINDOWS_IN_EPOCHS
)


def codes(scheduler: str, *, loop: str = LOOP, **places: str) -> list[str]:
    return codes_in(filled(loop, scheduler=scheduler, **places), "GA6")


IN_STEPS = [
    "CosineAnnealingLR(optimizer, T_max=epochs * (len(loader) // K))",
    "CosineAnnealingLR(optimizer, len(loader) // K * epochs)",
    "LinearLR(optimizer, 1.0, 0.1, total_iters=len(loader) // K * epochs)",
    "LinearLR(optimizer, 1.0, 0.1, len(loader) // K * epochs)",
    "OneCycleLR(optimizer, 0.1, epochs=epochs, steps_per_epoch=math.ceil(len(loader) / K))",
    "transformers.get_linear_schedule_with_warmup(optimizer, 10, int(epochs * len(loader) / K))",
    "transformers.get_scheduler('cosine', optimizer, num_training_steps=len(loader) // K * epochs)",
]
IN_MICRO_BATCHES = [line.replace(" // K", "").replace(" / K", "") for line in IN_STEPS]
NOT_TOLD = [
    "LinearLR(optimizer, 0.1)",
    "LinearLR(optimizer, 0.1, total_iters=5)",
    "StepLR(optimizer, 1000)",
    "CosineAnnealingLR(optimizer, T_max=epochs)",
    "CosineAnnealingLR(optimizer, T_max=1000)",
    "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.99**step)",
    "make_scheduler(optimizer, len(loader) // K * epochs)",
    "accelerator.prepare(CosineAnnealingLR(optimizer, len(loader) // K * epochs))",
]


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("scheduler", IN_STEPS)
def test_planned_in_steps_and_moved_at_every_micro_batch(scheduler: str, place: str) -> None:
    assert codes(scheduler, **{place: "scheduler.step()"}) == ["GA601"]


@pytest.mark.parametrize("scheduler", IN_STEPS)
def test_planned_in_steps_and_moved_once_per_step_is_right(scheduler: str) -> None:
    assert codes(scheduler, inside="scheduler.step()") == []


@pytest.mark.parametrize("scheduler", IN_MICRO_BATCHES)
def test_planned_in_micro_batches_and_moved_once_per_step(scheduler: str) -> None:
    assert codes(scheduler, inside="scheduler.step()") == ["GA603"]


@pytest.mark.parametrize("scheduler", IN_MICRO_BATCHES)
def test_planned_in_micro_batches_and_moved_with_them_is_right(scheduler: str) -> None:
    assert codes(scheduler, after="scheduler.step()") == []


@pytest.mark.parametrize("place", ["before", "inside", "after", "end"])
@pytest.mark.parametrize("scheduler", NOT_TOLD)
def test_a_length_that_is_not_told_is_no_finding(scheduler: str, place: str) -> None:
    assert codes(scheduler, **{place: "scheduler.step()"}) == []


@pytest.mark.parametrize("scheduler", [*IN_STEPS, *IN_MICRO_BATCHES])
@pytest.mark.parametrize("call", ["scheduler.step(epoch)", "scheduler.step(loss.item())"])
def test_moved_by_a_number_of_its_own(scheduler: str, call: str) -> None:
    assert codes(scheduler, after=call) == []


@pytest.mark.parametrize("scheduler", [*IN_STEPS, *IN_MICRO_BATCHES])
def test_moved_once_per_epoch_is_none_of_these(scheduler: str) -> None:
    assert codes(scheduler, end="scheduler.step()") == []


def test_two_schedulers_that_move_once_per_step_are_none_that_moves_twice() -> None:
    schedulers = "[CosineAnnealingLR(optimizer, len(loader) // K * epochs), StepLR(optimizer, 10)]"
    assert codes(schedulers, inside="[s.step() for s in scheduler]") == []
    assert codes(schedulers, loop=LOOP.replace("% K", "% 2"), inside="[s.step() for s in scheduler]") == []


def test_the_message_names_the_step() -> None:
    source = filled(LOOP, scheduler=IN_STEPS[0], before="scheduler.step()")
    (message,) = [f.message for f in lint_source(source, "train.py") if f.mistake.code == "GA601"]
    assert "at every micro-batch" in message
    assert "(at line 16)" in message
    assert "(taking K as 4)" in message


@pytest.mark.parametrize(
    "length",
    [
        "len(train_data) // batch_size * epochs",
        "len(train_set) // K * epochs",
        "len(loader) // world_size * epochs",
        "len(other_loader) // K * epochs",
    ],
)
def test_a_length_that_the_loop_does_not_count_by_is_not_told(length: str) -> None:
    for place in ("after", "inside"):
        assert codes(f"CosineAnnealingLR(optimizer, {length})", **{place: "scheduler.step()"}) == []


EPOCHS = [
    "range(int(epochs))",
    "range(start_epoch, epochs)",
    "range(args.resume_from, int(epochs))",
    "range(1, epochs + 1)",
]


@pytest.mark.parametrize("counted", EPOCHS)
def test_epochs_that_are_counted_from_where_a_training_begins(counted: str) -> None:
    loop = LOOP.replace("range(epochs)", counted)
    assert codes(IN_STEPS[0], loop=loop, after="scheduler.step()") == ["GA601"]
    assert codes(IN_STEPS[0], loop=loop, inside="scheduler.step()") == []
    assert codes(IN_MICRO_BATCHES[0], loop=loop, inside="scheduler.step()") == ["GA603"]
    assert codes(IN_MICRO_BATCHES[0], loop=loop, after="scheduler.step()") == []


@pytest.mark.parametrize("counted", ["range(warm, epochs)", "range(2, epochs, 2)", "range(first + 1, epochs)"])
def test_epochs_that_are_counted_from_elsewhere_are_not_told(counted: str) -> None:
    loop = LOOP.replace("range(epochs)", counted)
    for scheduler in (IN_STEPS[0], IN_MICRO_BATCHES[0]):
        for place in ("inside", "after"):
            assert codes(scheduler, loop=loop, **{place: "scheduler.step()"}) == []


FROM_SAMPLES = (
    """\
import math
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

def train(model, train_dataset, other_dataset, criterion, epochs, K, args):
    loader = DataLoader(train_dataset, batch_size=args.batch_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = CosineAnnealingLR(optimizer, T_max={moves})
"""
    + WINDOWS_IN_EPOCHS
)


def from_samples(moves: str, place: str) -> list[str]:
    return codes_in(filled(FROM_SAMPLES, moves=moves, **{place: "scheduler.step()"}), "GA6")


@pytest.mark.parametrize(
    "batches",
    ["len(train_dataset) // args.batch_size", "int(len(train_dataset) / args.batch_size)"],
)
def test_samples_divided_by_the_size_of_a_batch_are_batches(batches: str) -> None:
    assert from_samples(f"{batches} * epochs", "inside") == ["GA603"]
    assert from_samples(f"{batches} * epochs", "after") == []
    assert from_samples(f"{batches} // K * epochs", "inside") == []
    assert from_samples(f"{batches} // K * epochs", "after") == ["GA601"]


def test_samples_divided_by_the_size_of_a_window_are_steps() -> None:
    for steps in ("len(train_dataset) // (args.batch_size * K)", "math.ceil(len(train_dataset) / args.batch_size / K)"):
        assert from_samples(f"epochs * ({steps})", "inside") == []
        assert from_samples(f"epochs * ({steps})", "after") == ["GA601"]


@pytest.mark.parametrize(
    "batches",
    [
        "len(other_dataset) // args.batch_size",
        "len(train_dataset) // args.eval_batch_size",
        "len(train_dataset) // (args.batch_size * args.world_size)",
        "len(train_dataset) // K",
        "len(train_dataset)",
    ],
)
@pytest.mark.parametrize("place", ["inside", "after"])
def test_samples_divided_by_anything_else_are_not_told(batches: str, place: str) -> None:
    assert from_samples(f"{batches} * epochs", place) == []


OF_ITS_OWN = """
import functools
import torch
from torch.optim.lr_scheduler import LambdaLR

def linear(step, *, num_training_steps):
    return max(0.0, 1 - step / num_training_steps)

def get_linear_schedule(optimizer, num_training_steps):
    def lr_lambda(step):
        return max(0.0, 1 - step / num_training_steps)
    return LambdaLR(optimizer, lr_lambda)

def get_partial_schedule(optimizer, num_training_steps):
    return LambdaLR(optimizer, lr_lambda=functools.partial(linear, num_training_steps=num_training_steps))

def get_warmed_up_schedule(optimizer, length):
    return LambdaLR(optimizer, lambda step: min(1.0, step / length))
"""


@pytest.mark.parametrize(
    ("schedule", "told"),
    [("get_linear_schedule", True), ("get_partial_schedule", True), ("get_warmed_up_schedule", False)],
)
def test_a_schedule_of_ones_own_whose_function_is_bound_to_its_length(schedule: str, told: bool) -> None:
    def codes_of(length: str, place: str) -> list[str]:
        return codes(f"{schedule}(optimizer, {length})", loop=OF_ITS_OWN + LOOP, **{place: "scheduler.step()"})

    steps, batches = "len(loader) // K * epochs", "len(loader) * epochs"
    assert codes_of(steps, "before") == ["GA601"] * told
    assert codes_of(batches, "inside") == ["GA603"] * told
    assert codes_of(steps, "inside") == codes_of(batches, "before") == []


@pytest.mark.parametrize(
    ("name", "is_followed"),
    [
        ("update_learning_rate", True),
        ("adjust_lr", True),
        ("lr_update", True),
        ("step_optimizer", False),
        ("update_all", False),
        ("finish_lrn", False),
    ],
)
def test_a_call_that_is_named_after_the_learning_rate_leaves_gradients_as_they_are(
    name: str, is_followed: bool
) -> None:
    source = f"""\
from elsewhere import {name}

def train(model, loader, optimizer, K):
    for epoch in range(3):
        for i, batch in enumerate(loader):
            (model(batch).mean() / K).backward()
            if (i + 1) % K == 0:
                {name}(optimizer, i)
                optimizer.step()
                optimizer.zero_grad()
"""
    assert codes_in(source) == (["GA301"] if is_followed else [])


BY_ITS_OWN_FUNCTION = """\
import math
import torch
from torch.optim.lr_scheduler import LambdaLR

def train(model, loader, optimizer, config, K=3):
    warmup, last = config.warmup, config.last
{function}
    scheduler = LambdaLR(optimizer, rate)
    seen = 0
    while True:
        for x in loader:
            (model(x).mean() / K).backward()
            seen += {counts}
            if seen % K == 0:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if seen >= last:
                return
"""
PLANS = {
    "linear": "    rate = lambda n: 1 - n / last",
    "what is left": "    rate = lambda n: max(0.0, float(last - n) / float(max(1, last - warmup)))",
    "a cosine after a warm-up": """
    def rate(n):
        if n < warmup:
            return float(n) / float(max(1, warmup))
        progress = min(1.0, (n - warmup) / max(1, last - warmup))
        return 0.5 * (1.0 + math.cos(math.pi * progress))
""",
    "half a turn": "    rate = lambda n: 0.5 * (1 + math.cos(math.pi * n / last))",
}
NO_SUCH_PLANS = {
    "steps": "    rate = lambda n: 1 - n / (last // K)",
    "a warm-up": "    rate = lambda n: min(1.0, n / last)",
    "a share of it": "    rate = lambda n: 1 - n / (0.7 * last)",
    "no end": "    rate = lambda n: 1 / math.sqrt(n + 1)",
    "something else": "    rate = lambda n: 1 - n / config.planned",
}


@pytest.mark.parametrize("plan", PLANS)
def test_a_function_whose_last_phase_ends_where_a_count_of_micro_batches_ends_training(plan: str) -> None:
    source = BY_ITS_OWN_FUNCTION.format(function=PLANS[plan], counts="1")
    assert codes_in(source) == ["GA603"]


@pytest.mark.parametrize("plan", NO_SUCH_PLANS)
def test_a_function_that_ends_elsewhere_is_no_plan_in_micro_batches(plan: str) -> None:
    assert lint_source(BY_ITS_OWN_FUNCTION.format(function=NO_SUCH_PLANS[plan], counts="1"), "train.py") == []


def test_a_count_of_steps_that_ends_training_plans_in_steps() -> None:
    source = BY_ITS_OWN_FUNCTION.format(function=PLANS["linear"], counts="1").replace(
        "    seen = 0\n", "    seen = done = 0\n"
    )
    counted = source.replace(
        "                scheduler.step()\n", "                scheduler.step()\n                done += 1\n"
    )
    assert lint_source(counted.replace("seen >= last", "done >= last"), "train.py") == []


PLANS_BY_ITSELF = """\
import torch
{made}

def train(net, rows, k, epochs):
    loader = torch.utils.data.DataLoader(rows, batch_size=4)
    adam = BertAdam(net.parameters(), lr=1e-3, {told})
    step = 0
    for epoch in range(epochs):
        for x, y in loader:
            (torch.nn.functional.cross_entropy(net(x), y) / k).backward()
            step += 1
            if step % k == 0:
                adam.step()
                adam.zero_grad()
"""
OF_A_PACKAGE = "from pytorch_pretrained_bert.optimization import BertAdam"
OF_THE_FILE = """\
class BertAdam(torch.optim.Optimizer):
    def __init__(self, params, lr, warmup=-1, t_total=-1):
        super().__init__(params, dict(lr=lr, warmup=warmup, t_total=t_total))

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad.data, alpha=-group["lr"])
"""


@pytest.mark.parametrize("made", [OF_A_PACKAGE, OF_THE_FILE])
@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("t_total=int(len(loader) * epochs)", ["GA603"]),
        ("t_total=len(loader) * epochs // k", []),
        ("t_total=int(len(rows) / 4 / k * epochs)", []),
        ("t_total=-1", []),
        ("warmup=0.1", []),
    ],
)
def test_an_optimizer_that_plans_its_rate_by_itself(made: str, told: str, found: list[str]) -> None:
    assert codes_in(PLANS_BY_ITSELF.format(made=made, told=told)) == found


OWN_STEP = """
class Warmup:
    def __init__(self, optimizer, rate):
        self.optimizer, self.rate, self.count = optimizer, rate, 0

    def rate_now(self):
        return self.rate * min(1, self.count / 100)

    def step(self):
        self.count += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate_now()
        {does}

class Trainer:
    def __init__(self, model, optimizer, stats, args):
        self.model, self.optimizer, self.stats, self.args = model, optimizer, stats, args
        self.schedule = Warmup(optimizer, args.rate)

    def train(self, loader, criterion):
        for epoch in range(self.args.epochs):
            self.model.zero_grad()
            for i, (x, y) in enumerate(loader):
                (criterion(self.model(x), y) / self.args.window).backward()
                if (i + 1) % self.args.window == 0:
                    {steps}
                    self.model.zero_grad()
                    self.stats.updates += 1
                    if self.stats.updates % self.args.pause == 0:
                        {at_pauses}
"""


def test_a_step_of_ones_own_that_does_nothing_to_gradients_decides_on_no_window() -> None:
    # What the schedule is moved by says nothing of the windows, whose remainder each epoch begins with clearing.
    places = {"does": "print(self.count)", "steps": "self.optimizer.step()", "at_pauses": "self.schedule.step()"}
    assert codes_in(OWN_STEP.format(**places)) == ["GA301"]


def test_one_that_steps_an_optimizer_is_its_step() -> None:
    places = {"does": "self.optimizer.step()", "steps": "self.schedule.step()", "at_pauses": "print(epoch)"}
    assert codes_in(OWN_STEP.format(**places)) == ["GA301"]
    # The remainder is not lost where nothing is cleared before the next step, but joins the first window.
    goes_on = OWN_STEP.replace("            self.model.zero_grad()\n            for", "            for")
    assert codes_in(goes_on.format(**places)) == ["GA301"]
