"""The grad scaler's order: what PyTorch itself refuses is reported to raise."""

from __future__ import annotations

import pytest
import torch
from loops_with_places import codes_in
from torch import nn

from gradcheck_accum.lint import lint_source

LOOP = """\
import torch
from torch import nn

def train(model, loader, optimizer, criterion, scaler):
    assert len(loader) % 3 == 0
    for i, (x, y) in enumerate(loader):
        scaler.scale(criterion(model(x), y) / 3).backward()
        {each}
        if (i + 1) % 3 == 0:
            {window}
            optimizer.zero_grad()
"""
UNSCALE, CLIP = "scaler.unscale_(optimizer)", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
STEP, UPDATE = "scaler.step(optimizer)", "scaler.update()"


def said(window: list[str], each: str = "pass") -> list[tuple[str, bool]]:
    """The codes, each with whether it is reported to raise."""
    found = lint_source(LOOP.format(each=each, window="; ".join(window)), "train.py")
    return [(f.mistake.code, "raises a RuntimeError" in f.message) for f in found]


def test_the_right_order() -> None:
    assert said([UNSCALE, CLIP, STEP, UPDATE]) == []
    assert said([STEP, UPDATE]) == []


RAISING = pytest.mark.parametrize(
    ("window", "each"),
    [
        ([UNSCALE, UNSCALE, CLIP, STEP, UPDATE], "pass"),
        ([UNSCALE, CLIP, STEP, UPDATE], UNSCALE),
        ([STEP, UPDATE], UNSCALE),
        ([STEP, UNSCALE, UPDATE], "pass"),
    ],
)


@RAISING
def test_it_does_raise(window: list[str], each: str) -> None:
    names: dict[str, object] = {}
    exec(LOOP.format(each=each, window="; ".join(window)), names)
    model = nn.Linear(5, 2)
    batches = [(torch.randn(5, 5), torch.randn(5, 2)) for _ in range(6)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="unscale_"):
        names["train"](model, batches, optimizer, nn.MSELoss(), torch.amp.GradScaler("cpu"))  # type: ignore[operator]


@RAISING
def test_an_order_that_raises_is_said_to_raise(window: list[str], each: str) -> None:
    assert ("GA502", True) in said(window, each)


def test_an_update_at_every_micro_batch_does_not_raise() -> None:
    assert said([UNSCALE, CLIP, STEP], UPDATE) == [("GA502", False)]
    assert said([STEP, UPDATE], f"{UNSCALE}; {UPDATE}")[0] == ("GA502", False)


def test_an_update_that_is_made_elsewhere_may_come_in_time() -> None:
    assert said([UNSCALE, CLIP, STEP]) == []


MADE_FIRST = """
from functools import partial
import torch
from torch import nn

def make_clip(cfg):
    clip = None
    if cfg.max_norm is not None:
        clip = partial(nn.utils.clip_grad_norm_, max_norm=cfg.max_norm)
    return clip

class Trainer:
    def __init__(self, model, optimizer, cfg):
        self.model, self.optimizer, self.cfg = model, optimizer, cfg
        {options}
        self.clip = make_clip(cfg)
        self.scaler = torch.cuda.amp.GradScaler() if cfg.half else None

    def train(self, loader, criterion, K):
        for epoch in range(self.cfg.epochs):
            for i, (x, y) in enumerate(loader):
                loss = criterion(self.model(x), y) / K
                if self.scaler is None:
                    loss.backward()
                else:
                    self.scaler.scale(loss).backward()
                if (i + 1) % K == 0:
                    if self.scaler is not None:
                        {unscale}
                    if self.clip is not None:
                        self.clip(self.model.parameters())
                    if self.scaler is None:
                        self.optimizer.step()
                    else:
                        self.scaler.step(self.optimizer)
                        self.scaler.update()
                    self.optimizer.zero_grad()
            self.optimizer.zero_grad()
"""


@pytest.mark.parametrize(("unscale", "wanted"), [("pass", ["GA501"]), ("self.scaler.unscale_(self.optimizer)", [])])
def test_a_clip_that_the_setup_puts_together_is_tried_before_its_other_options(unscale: str, wanted: list[str]) -> None:
    options = "\n        ".join(f"self.part_{n} = cfg.part_{n}() if cfg.has_{n} else None" for n in range(20))
    found = lint_source(MADE_FIRST.format(options=options, unscale=unscale), "train.py")
    assert [f.mistake.code for f in found if f.mistake.code.startswith("GA5")] == wanted


ONE_TURN = """\
import torch
import torch.nn.functional as F

def train_step(network, scaler, optimizer, x, y{given}):
    loss = F.cross_entropy(network(x), y)
    {backward}
    {unscales}
    {clips}
    {steps}
    return loss.item()
"""
CLIPS = "torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)"
SCALED, STEPS_SCALED = "scaler.scale(loss).backward()", "scaler.step(optimizer); scaler.update(); optimizer.zero_grad()"
PLAIN = {
    "given": "",
    "backward": "loss.backward()",
    "unscales": "pass",
    "clips": CLIPS,
    "steps": "optimizer.step(); optimizer.zero_grad()",
}
GATED = "if update: optimizer.step(); optimizer.zero_grad()"


@pytest.mark.parametrize(
    ("turn", "found"),
    [
        ({"backward": SCALED, "steps": STEPS_SCALED}, ["GA501"]),
        ({"backward": SCALED, "steps": STEPS_SCALED, "unscales": "scaler.unscale_(optimizer)"}, []),
        ({}, []),
        ({"given": ", update", "steps": GATED}, ["GA401"]),
        ({"given": ", update", "steps": GATED, "clips": f"if update: {CLIPS}"}, []),
        # Cleared at every call: none waits for another.
        ({"given": ", update", "steps": GATED, "backward": "optimizer.zero_grad(); loss.backward()"}, []),
        ({"given": ", update", "backward": "if not update: return loss.item()\n    loss.backward()"}, []),
        ({"steps": "pass"}, []),
    ],
)
def test_a_function_shows_what_it_clips_whatever_calls_it(turn: dict[str, str], found: list[str]) -> None:
    assert codes_in(ONE_TURN.format(**{**PLAIN, **turn})) == found


UNKNOWN_LENGTH = """\
import numpy as np
import torch
import torch.nn.functional as F

def fit(network, scaler, optimizer, loader, plan, epochs):
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader):
            every = max(1, np.interp(i, plan.at, plan.lengths).round())
            loss = F.cross_entropy(network(x), y)
            {backward}
            {every}
            if {closes}:
                {once}
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
"""
DIFFERS = "(i + 1) % every == 0"


@pytest.mark.parametrize(
    ("every", "once", "closes", "found"),
    [
        (f"scaler.unscale_(optimizer); {CLIPS}", "pass", DIFFERS, ["GA401"]),
        (CLIPS, "pass", DIFFERS, ["GA401", "GA501"]),
        ("pass", CLIPS, DIFFERS, ["GA501"]),
        ("pass", f"scaler.unscale_(optimizer); {CLIPS}", DIFFERS, []),
        ("pass", CLIPS, "plan.closes(i)", ["GA501"]),
        (CLIPS, "pass", "plan.closes(i)", ["GA501"]),
    ],
)
def test_what_is_clipped_too_early_is_so_however_long_the_window_is(
    every: str, once: str, closes: str, found: list[str]
) -> None:
    source = UNKNOWN_LENGTH.format(backward=SCALED, every=every, once=once, closes=closes)
    assert sorted(codes_in(source)) == found


COUNTS_ITSELF = """\
import torch
import torch.nn.functional as F

class Learner:
    def __init__(self, network, settings):
        self.network, self.every, self.held = network, settings.accumulation_steps, 0
        self.optimizer = torch.optim.AdamW(network.parameters())

    def learn(self, x, y):
        loss = F.cross_entropy(self.network(x), y) / self.every
        loss.backward()
        {each}
        self.held += 1
        if self.held {comes} self.every:
            {once}
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.held = {back}
"""
OWN_CLIP = "torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)"


@pytest.mark.parametrize("comes", ["==", ">="])
@pytest.mark.parametrize(
    ("each", "once", "back", "found"),
    [
        (OWN_CLIP, "pass", "0", ["GA401"]),
        ("pass", OWN_CLIP, "0", []),
        ("self.optimizer.zero_grad()", "pass", "0", ["GA202"]),
    ],
)
def test_a_method_that_sets_its_count_back_counts_its_windows(
    comes: str, each: str, once: str, back: str, found: list[str]
) -> None:
    assert codes_in(COUNTS_ITSELF.format(comes=comes, each=each, once=once, back=back)) == found
