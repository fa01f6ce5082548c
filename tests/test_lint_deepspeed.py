"""What lint knows of DeepSpeed's engine, and what it leaves open."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

LOOP = """\
import deepspeed

def train(net, loader, args, k):
    {config}
    engine, opt, _, _ = deepspeed.initialize(model=net, config=config)
    for i, batch in enumerate(loader):
        loss = engine(batch).mean(){divided}
        {backward}
        {step}
"""


def codes(
    config: str = 'config = {"gradient_accumulation_steps": 8}',
    divided: str = "",
    backward: str = "engine.backward(loss)",
    step: str = "engine.step()",
) -> list[str]:
    source = LOOP.format(config=config, divided=divided, backward=backward, step=step)
    return codes_in(source)


def test_the_engine_divides_steps_and_clears_by_itself() -> None:
    assert codes() == []


@pytest.mark.parametrize(
    ("config", "divided"),
    [
        ('config = {"gradient_accumulation_steps": k}', " / k"),
        ('config = {}; config["gradient_accumulation_steps"] = k', " * (1 / k)"),
        ("config = json.load(open(args.file))", ' / config["gradient_accumulation_steps"]'),
        ("config = args.file", " / engine.gradient_accumulation_steps()"),
    ],
)
def test_a_division_beside_the_engines_is_one_too_many(config: str, divided: str) -> None:
    assert codes(config, divided) == ["GA102"]


@pytest.mark.parametrize("cast", ["half", "bfloat16", "float", "double", "cpu", "cuda"])
def test_an_engine_elsewhere_or_in_another_precision_is_the_engine(cast: str) -> None:
    config = 'config = {"gradient_accumulation_steps": k}'
    assert codes(config, " / k", f"engine = engine.{cast}(); engine.backward(loss)") == ["GA102"]


@pytest.mark.parametrize(
    ("config", "divided"),
    [
        ('config = {"gradient_accumulation_steps": 8}', " / k"),
        ('config = {"gradient_accumulation_steps": 8}', " / 8"),
        ('config = "ds_config.json"', " / args.gradient_accumulation_steps"),
        ('config = {"gradient_accumulation_steps": "auto"}', " / 8"),
    ],
)
def test_a_divisor_that_need_not_be_the_engines_is_left_open(config: str, divided: str) -> None:
    assert codes(config, divided) == []


def test_an_engine_that_is_told_not_to_divide_leaves_it_to_the_loop() -> None:
    assert codes(divided=" / 8", backward="engine.backward(loss, scale_wrt_gas=False)") == []
    assert codes(backward="engine.backward(loss, scale_wrt_gas=False)") == ["GA101"]


@pytest.mark.parametrize(
    ("backward", "step"),
    [
        ("loss.backward()", "engine.step()"),
        ("engine.backward(loss)", "if (i + 1) % 8 == 0: engine.step()"),
        ("engine.backward(loss); engine.zero_grad()", "engine.step()"),
        ("engine.backward(loss); torch.nn.utils.clip_grad_norm_(engine.parameters(), 1.0)", "engine.step()"),
        ("engine.set_gradient_accumulation_boundary(i % 8 == 7); engine.backward(loss)", "engine.step()"),
        ("engine.backward(loss)", "opt.step()"),
    ],
)
def test_what_depends_on_where_the_engine_keeps_its_gradients_is_left_open(backward: str, step: str) -> None:
    assert codes(divided=" / 8", backward=backward, step=step) == []


def test_what_is_asked_for_a_boundary_is_an_engine_wherever_it_was_made() -> None:
    source = (
        "def train(model, loader):\n"
        "    for batch in loader:\n"
        "        loss = model(batch).mean() / model.gradient_accumulation_steps()\n"
        "        model.backward(loss)\n"
        "        if model.is_gradient_accumulation_boundary():\n"
        "            print(loss)\n"
        "        model.step()\n"
    )
    assert codes_in(source) == ["GA102"]


def test_a_trainer_with_a_boundary_of_its_own_is_no_engine() -> None:
    source = (
        "class Trainer:\n"
        "    def __init__(self, model, optimizer, k):\n"
        "        self.model, self.optimizer, self.k, self.seen = model, optimizer, k, 0\n"
        "    def is_gradient_accumulation_boundary(self):\n"
        "        return self.seen % self.k == 0\n"
        "    def fit(self, batches):\n"
        "        while True:\n"
        "            loss = self.model(next(batches)).mean()\n"
        "            loss.backward()\n"
        "            self.seen += 1\n"
        "            if self.is_gradient_accumulation_boundary():\n"
        "                self.optimizer.step()\n"
        "                self.optimizer.zero_grad()\n"
    )
    assert codes_in(source) == ["GA101"]


GIVEN_A_SCHEDULER = """\
import deepspeed
import torch
from transformers import get_scheduler

def train(net, rows, args, k, epochs):
    loader = torch.utils.data.DataLoader(rows, batch_size=4)
    adam = torch.optim.AdamW(net.parameters())
    schedule = get_scheduler("linear", optimizer=adam, num_warmup_steps=10, num_training_steps={moves})
    engine, adam, _, schedule = deepspeed.initialize(model=net, optimizer=adam, config={config}{given})
    for epoch in range(epochs):
        for batch in loader:
            engine.backward(engine(batch).mean())
            engine.step()
            {moved}
"""
GIVEN = ", lr_scheduler=schedule"
OF_BATCHES = "epochs * len(loader)"
STATED = '{"gradient_accumulation_steps": k}'
OF_SIZES = '{"train_batch_size": args.all, "train_micro_batch_size_per_gpu": 4}'


@pytest.mark.parametrize(
    ("config", "moves", "given", "moved", "found"),
    [
        (STATED, OF_BATCHES, GIVEN, "pass", ["GA603"]),
        (OF_SIZES, OF_BATCHES, GIVEN, "pass", ["GA603"]),
        (STATED, "epochs * len(loader) // k", GIVEN, "pass", []),
        (STATED, OF_BATCHES, "", "schedule.step()", []),
        # An engine that states no K makes a step of every micro-batch.
        ('{"train_micro_batch_size_per_gpu": 4}', OF_BATCHES, GIVEN, "pass", []),
        ('{"gradient_accumulation_steps": "auto"}', OF_BATCHES, GIVEN, "pass", []),
        ("args.config", OF_BATCHES, GIVEN, "pass", []),
    ],
)
def test_an_engine_moves_the_scheduler_that_it_is_given(
    config: str, moves: str, given: str, moved: str, found: list[str]
) -> None:
    assert codes_in(GIVEN_A_SCHEDULER.format(config=config, moves=moves, given=given, moved=moved)) == found
