"""GA602: averages that take in the weights at every micro-batch, and what only looks like one."""

from __future__ import annotations

import pytest
from loops_with_places import WINDOWS_IN_EPOCHS, codes_in, filled

from gradcheck_accum.lint import lint_source

LOOP = (
    """\
import copy
import torch
from diffusers.training_utils import EMAModel
from elsewhere import EMA
from timm.utils import ModelEmaV2
from torch.optim.swa_utils import AveragedModel

class Shadow:
    def __init__(self, model, decay):
        self.model, self.decay, self.shadow = model, decay, {{}}

    def update(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                new = (1.0 - self.decay) * param.data + self.decay * self.shadow[name]
                self.shadow[name] = new.clone()

class Teacher(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.module = copy.deepcopy(model)

    @torch.no_grad()
    def follow(self, model):
        for own, new in zip(self.module.parameters(), model.parameters()):
            own.mul_(0.99).add_(new, alpha=0.01)

@torch.no_grad()
def follow(target, source, decay=0.999):
    for t, s in zip(target.parameters(), source.parameters()):
        {rule}

def train(model, teacher, loader, optimizer, criterion, K, epochs, ema=None):
    average = {average}
"""
    + WINDOWS_IN_EPOCHS
)
USUAL = "t.mul_(decay).add_(s, alpha=1 - decay)"


def codes(average: str = "None", rule: str = USUAL, **places: str) -> list[str]:
    return codes_in(filled(LOOP, average=average, rule=rule, **places), "GA602")


AVERAGES = [
    ("AveragedModel(model)", "average.update_parameters(model)"),
    ("torch.optim.swa_utils.AveragedModel(model)", "if average is not None: average.update_parameters(model)"),
    ("ModelEmaV2(model)", "average.update(model)"),
    ("EMAModel(model.parameters())", "average.step(model.parameters())"),
    ("Shadow(model, 0.99)", "average.update()"),
    ("Teacher(model)", "average.follow(model)"),
    ("None", "follow(teacher, model)"),
    ("None", "if teacher is not None: follow(teacher, model)"),
]


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize(("average", "update"), AVERAGES)
def test_an_update_at_every_micro_batch(average: str, update: str, place: str) -> None:
    assert codes(average, **{place: update}) == ["GA602"]


@pytest.mark.parametrize("place", ["inside", "end"])
@pytest.mark.parametrize(("average", "update"), AVERAGES)
def test_an_update_once_per_step_or_epoch_is_right(average: str, update: str, place: str) -> None:
    assert codes(average, **{place: update}) == []


@pytest.mark.parametrize(
    "rule",
    [
        USUAL,
        "t.data.mul_(decay).add_((1 - decay) * s.data)",
        "t.data.mul_(decay).add_(s.data * (1.0 - decay))",
        "t.copy_(decay * t + (1 - decay) * s)",
        "t.data = t.data * decay + s.data * (1 - decay)",
        "t.data.copy_(0.99 * t.data + 0.01 * s.data)",
        "t.lerp_(s, 1 - decay)",
    ],
)
def test_the_ways_to_write_an_average(rule: str) -> None:
    assert codes(rule=rule, after="follow(teacher, model)") == ["GA602"]
    assert codes(rule=rule, inside="follow(teacher, model)") == []


@pytest.mark.parametrize(
    "rule",
    [
        "t.copy_(s)",
        "t.mul_(decay).add_(s, alpha=0.5)",
        "t.data = t.data - 0.1 * s.data",
        "t.grad.mul_(decay).add_(s.grad, alpha=1 - decay)",
        "t.lerp_(t, 0.5)",
        "running = decay * running + (1 - decay) * s.grad",
    ],
)
def test_what_is_no_average_of_the_weights(rule: str) -> None:
    assert codes(rule=rule, after="follow(teacher, model)") == []


@pytest.mark.parametrize(
    ("average", "update"),
    [
        ("EMA(model)", "average.update()"),
        ("None", "ema.update(model)"),
        ("0.0", "average = 0.9 * average + 0.1 * loss.item()"),
        ("AveragedModel(model)", "if (i + 1) % 100 == 0: average.update_parameters(model)"),
        ("AveragedModel(model)", "if (i + 1) % K == 0: average.update_parameters(model)"),
        ("AveragedModel(model)", "average(x)"),
    ],
)
def test_what_is_not_known_to_be_an_average_of_every_micro_batch(average: str, update: str) -> None:
    assert codes(average, after=update) == []


@pytest.mark.parametrize(
    ("average", "update"),
    [
        ("[AveragedModel(model), AveragedModel(model)]", "[one.update_parameters(model) for one in average]"),
        (
            "[AveragedModel(model), AveragedModel(model)]",
            "average[0].update_parameters(model); average[1].update_parameters(model)",
        ),
        ("[Shadow(model, 0.9), Shadow(model, 0.99)]", "average[0].update(); average[1].update()"),
        ("None", "follow(teacher, model); follow(other, model)"),
    ],
)
def test_two_averages_that_are_updated_once_per_step(average: str, update: str) -> None:
    right = filled(LOOP, average=average, rule=USUAL, inside=update).replace("% K", "% 2")
    wrong = filled(LOOP, average=average, rule=USUAL, after=update).replace("% K", "% 2")
    assert codes_in(right, "GA602") == []
    assert "GA602" in codes_in(wrong)


COPIED = """\
import copy
import torch
from torch import nn

class EMA:
    def __init__(self, beta):
        self.beta = beta

    def update(self, average, model):
        for new, own in zip(model.parameters(), average.parameters()):
            old, up = own.data, new.data
            own.data = self.blend(old, up)

    def blend(self, old, new):
        if old is None:
            return new
        return old * self.beta + (1 - self.beta) * new

net = nn.Linear(6, 3)
{average}
ema = EMA(0.99)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(100):
    optimizer.zero_grad()
    for _ in range(4):
        x, y = get_batch()
        (nn.functional.cross_entropy(net(x), y) / 4).backward()
        {each}
    optimizer.step()
    {once}
"""


@pytest.mark.parametrize("average", ["shadow = copy.deepcopy(net)", "shadow = copy.deepcopy(net).eval()"])
def test_an_average_in_a_deep_copy_that_a_method_of_its_own_blends(average: str) -> None:
    update = "ema.update(shadow, net)"
    wrong = lint_source(COPIED.format(average=average, each=update, once="pass"), "train.py")
    assert [(f.mistake.code, f.where.line) for f in wrong] == [("GA602", 17)]
    assert lint_source(COPIED.format(average=average, each="pass", once=update), "train.py") == []


def test_a_model_that_is_blended_with_itself_is_no_average() -> None:
    source = COPIED.format(average="shadow = net", each="ema.update(shadow, net)", once="pass")
    assert lint_source(source, "train.py") == []


def test_a_deep_copy_that_is_trained_instead_is_the_model() -> None:
    source = COPIED.format(average="net = copy.deepcopy(net)", each="optimizer.zero_grad()", once="pass")
    assert codes_in(source) == ["GA202"]
