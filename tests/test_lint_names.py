"""What names stand for: imports that the file does not show, defaults of settings, methods that two classes have."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

LOOP = """\
        for epoch in range(epochs):
            optimizer.zero_grad()
            for i, batch in enumerate(loader):
                loss = self.net(batch).mean() / {steps}
                loss.backward()
                if (i + 1) % {steps} == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                    {inside}
"""


def codes(source: str) -> list[str]:
    return codes_in(source)


@pytest.mark.parametrize(
    "default",
    [
        "config or Config()",
        "(given and given.config) or config",
        "config if config is not None else Config()",
    ],
)
def test_a_default_takes_nothing_from_what_was_given(default: str) -> None:
    source = (
        "class Trainer:\n"
        "    def __init__(self, net, config=None, given=None):\n"
        f"        self.net, self.config = net, {default}\n"
        "    def fit(self, loader, optimizer, epochs):\n"
    )
    assert codes(source + LOOP.format(steps="self.config.every", inside="pass")) == ["GA301"]
    flushed = source + LOOP.format(steps="self.config.every", inside="pass").replace(
        "== 0:", "== 0 or i + 1 == len(loader):"
    )
    assert codes(flushed) == ["GA103"]


def test_conditions_of_several_settings_are_settings_still() -> None:
    source = """\
def train(model, loader, optimizer, epochs, debug, verbose):
    for epoch in range(epochs):
        for i, batch in enumerate(loader):
            loss = model(batch).mean() / 4
            if not (debug and verbose):
                optimizer.zero_grad()
            loss.backward()
            if not (debug and verbose):
                optimizer.step()
            elif (i + 1) % 4 == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
"""
    assert set(codes(source)) == {"GA103", "GA304"}


DIVIDED = """\
def train(net, optimizer, loader, rounds, {name}, updates=True):
    batches = iter(loader)
    for _ in range(rounds):
        for _ in range({turns}):
            loss = net(next(batches)).mean()
            {inside}
        {after}
        {step}
        optimizer.zero_grad()
"""
BACKWARD = "(loss / {name}).backward()"


@pytest.mark.parametrize(
    ("name", "turns", "place", "step", "found"),
    [
        ("accumulate_every", "accumulate_every", "after", "optimizer.step()", ["GA304"]),
        ("accumulation_steps", "1", "inside", "optimizer.step()", ["GA304"]),
        ("accumulate_every", "accumulate_every", "inside", "optimizer.step()", []),
        ("temperature", "1", "inside", "optimizer.step()", []),
        ("accumulation_steps", "1", "inside", "updates and optimizer.step()", []),
    ],
    ids=["backward after the loop", "every batch", "right", "another name", "a condition on the step"],
)
def test_an_argument_called_k_that_divides_the_loss_is_stated(
    name: str, turns: str, place: str, step: str, found: list[str]
) -> None:
    places = {"inside": "pass", "after": "pass", place: BACKWARD.format(name=name)}
    assert codes(DIVIDED.format(name=name, turns=turns, step=step, **places)) == found


@pytest.mark.parametrize(("guarded", "found"), [(True, []), (False, ["GA304"])], ids=["counts on", "every batch"])
def test_a_count_that_goes_on_from_an_earlier_run_decides_on_the_step(guarded: bool, found: list[str]) -> None:
    guard = "if done % accumulation_steps != 0:\n            continue" if guarded else "print(done)"
    source = f"""\
def train(net, optimizer, loader, saved, accumulation_steps):
    done = saved["done"]
    for batch in loader:
        done += 1
        loss = net(batch).mean() / accumulation_steps
        loss.backward()
        {guard}
        optimizer.step()
        optimizer.zero_grad()
"""
    assert codes(source) == found


@pytest.mark.parametrize("switch", ["self.net.train()", "self.net.train(True)", "self.net.train(mode=False)"])
def test_the_mode_of_a_network_is_no_call_of_the_method_train(switch: str) -> None:
    source = (
        "class Trainer:\n"
        "    def __init__(self, net, every):\n"
        "        self.net, self.every = net, every\n"
        "        self.weights = list(net.parameters()) + list(self.net.parameters())\n"
        "    def train(self, loader, optimizer, epochs):\n"
    )
    assert codes(source + LOOP.format(steps="self.every", inside=switch)) == ["GA301"]


def test_what_is_asked_for_no_parameters_may_train_itself() -> None:
    source = """\
from torch import optim

class Trainer:
    def __init__(self, net, loader, every):
        self.net, self.loader, self.every = net, loader, every
        self.optimizer = optim.SGD(net.parameters())

    def train(self):
        for i, batch in enumerate(self.loader):
            self.net(batch).mean().backward()
            if (i + 1) % self.every == 0 or i + 1 == len(self.loader):
                self.optimizer.step()
                self.optimizer.zero_grad()

trainer = Trainer(make_net(), make_loader(), 4)
trainer.train()
"""
    assert codes(source) == ["GA101"]


STARRED = """\
from .everything import *

def train(model, loader, optimizer, every, epochs):
    optimizer.zero_grad()
    for i, batch in {batches}:
        loss = {loss}(model(batch["x"]), batch["y"]) / every
        loss.backward()
        if (i + 1) % every == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
"""


def test_what_a_star_import_brings_is_what_it_is_called() -> None:
    loss = "torch.nn.functional.cross_entropy"
    assert codes(STARRED.format(batches="enumerate(cycle(loader))", loss=loss)) == []
    assert codes(STARRED.format(batches="enumerate(loader)", loss=loss)) == ["GA301"]
    assert codes(STARRED.format(batches="enumerate(loader)", loss="nothing_known(every)")) == ["GA301"]
    for name in ("cycle", "repeat_forever"):
        source = STARRED.format(batches=f"enumerate({name}(loader))", loss=loss)
        own = source.replace("import *", f"import *\n\ndef {name}(items):\n    yield from items\n")
        assert codes(own) == ["GA301"]


@pytest.mark.parametrize(
    ("before", "indent", "after"),
    [("try:", "    ", "except ImportError:\n    torch = None"), ("if has_torch():", "    ", "")],
)
def test_what_is_imported_where_it_is_there_is_known(before: str, indent: str, after: str) -> None:
    source = f"""\
{before}
{indent}from torch.optim.swa_utils import AveragedModel as Smooth
{after}

def train(model, loader, optimizer, every):
    smooth = Smooth(model)
    while True:
        for i, batch in enumerate(loader):
            (model(batch).mean() / every).backward()
            smooth.update_parameters(model)
            if (i + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
"""
    assert "GA602" in codes(source)
    assert "GA602" not in codes(
        source.replace("if (i + 1)", "if False:\n                pass\n            if (i + 1)").replace(
            "            smooth.update_parameters(model)\n", ""
        )
    )


PROPERTY = """\
from abc import abstractmethod

class Base:
    {setup}

    @property
    def loss(self):
        return self._loss

    def train(self, net, loader, epochs, K):
        for _ in range(epochs):
            self.optimizer.zero_grad()
            for i, (x, y) in enumerate(loader, 1):
                ({loss} / K).backward()
                if i % K == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
"""
SETTER = """@property
    def optimizer(self):
        return self._optimizer

    @optimizer.setter
    def optimizer(self, value):
        self._optimizer = value"""
LATER = """def __init__(self):
        self.optimizer = None

    def use(self, optimizer):
        self.optimizer = optimizer"""
ABSTRACT = """@abstractmethod
    def loss_of(self, x, y):
        '''The loss.'''

    @property
    @abstractmethod
    def optimizer(self):
        pass"""
REFUSING = """def loss_of(self, x, y):
        '''The loss.'''
        raise NotImplementedError(type(self))"""


@pytest.mark.parametrize("setup", [SETTER, LATER, ABSTRACT, REFUSING])
def test_what_somebody_else_sets_or_writes_is_there(setup: str) -> None:
    loss = "net(x).mean()" if "loss_of" not in setup else "self.loss_of(net(x), y)"
    assert codes(PROPERTY.format(setup=setup, loss=loss)) == ["GA301"]


@pytest.mark.parametrize("setup", [ABSTRACT, REFUSING])
def test_what_somebody_else_writes_may_divide(setup: str) -> None:
    undivided = PROPERTY.format(setup=setup, loss="self.loss_of(net(x), y)").replace(" / K", "")
    assert codes(undivided) == ["GA301"]
    own = setup.replace("'''The loss.'''", "return (x - y).abs().mean()")
    own = own.replace("\n        raise NotImplementedError(type(self))", "").replace(
        "    @abstractmethod\n    def loss", "    def loss"
    )
    own = own.replace("@abstractmethod\n    def loss_of", "def loss_of")
    found = PROPERTY.format(setup=own, loss="self.loss_of(net(x), y)").replace(" / K", "")
    assert codes(found) == ["GA101", "GA301"]


EMPTY = """\
import torch
from torch import nn

class Base{base}:
    def __init__(self):
        super().__init__()
        self.optimizer, self.schedule = None, None

    def make_optimizer(self):
        {empty}

    def make_schedule(self):
        'None.'

    def after_epoch(self, epoch):
        pass

    def train_on(self, net, loader, epochs, K):
        self.optimizer = self.make_optimizer()
        {schedule}
        for epoch in range(epochs):
            self.optimizer.zero_grad()
            for i, (x, y) in enumerate(loader, 1):
                (nn.functional.mse_loss(net(x), y) / K).backward()
                {clip}
                if i % K == 0:
                    {inside}
                    self.optimizer.step()
                    self.optimizer.zero_grad()
            self.optimizer.zero_grad()
            self.after_epoch(epoch)
{derived}"""
CLIP = "nn.utils.clip_grad_norm_(net.parameters(), 1.0)"


def empty_methods(**places: str) -> list[str]:
    defaults = {"base": "", "empty": "return", "schedule": "pass", "clip": "pass", "inside": "pass", "derived": ""}
    return codes(EMPTY.format(**(defaults | places)))


@pytest.mark.parametrize("base", ["", "(nn.Module)"])
@pytest.mark.parametrize("empty", ["return", "pass", "return None", "'Yours.'", "..."])
def test_a_method_that_does_nothing_but_is_asked_for_a_result_is_there_to_be_written(base: str, empty: str) -> None:
    assert empty_methods(base=base, empty=empty) == ["GA301"]
    assert empty_methods(base=base, empty=empty, clip=CLIP) == ["GA401", "GA301"]
    assert empty_methods(base=base, empty=empty, inside=CLIP) == ["GA301"]


def test_a_program_that_makes_an_object_of_the_class_leaves_nothing_to_others() -> None:
    fetched = "self.schedule = self.make_schedule()"
    if_any = f"if self.schedule is not None:\n                    {CLIP}"
    made = "return torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)"
    own = "\ndef main(net, loader):\n    Base().train_on(net, loader, 3, 4)\n"
    assert empty_methods(schedule=fetched, clip=if_any, empty=made) == ["GA401", "GA301"]
    assert empty_methods(schedule=fetched, clip=if_any, empty=made, derived=own) == ["GA301"]


def test_what_is_none_is_asked_for_nothing_where_that_is_tested() -> None:
    source = PROPERTY.format(setup=LATER, loss="net(x).mean()")
    assert codes(source.replace("if i % K == 0:", "if self.optimizer is not None and i % K == 0:")) == []


COUNTED = """\
def train(model, batches, logger, optimizer, K, n):
    for _ in range(3):
        for {target} in logger.every({source}, "train"):
            batch = next(batches)
            (model(batch).mean(){scale}).backward()
            if {counter} % K == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


def test_a_range_that_was_wrapped_elsewhere_gives_numbers() -> None:
    for target, counter in (("i", "i + 1"), ("i", "i"), ("i, _", "i + 1")):
        source = "range(n)" if target == "i" else "enumerate(range(n))"
        given = {"target": target, "source": source, "counter": f"({counter})"}
        assert codes(COUNTED.format(scale="", **given)) == ["GA101", "GA301"]
        assert codes(COUNTED.format(scale=" / K", **given)) == ["GA301"]


def test_what_is_taken_modulo_nothing_is_no_number() -> None:
    source = COUNTED.format(target="batch", source="batches", counter="(seen + 1)", scale="")
    assert codes(source.replace("            batch = next(batches)\n", "")) == []


GROWN = """\
import torch

class Texts:
    def __init__(self, lines):
        self.items = []
        for line in {lines}:
            self.items.append(line)

    def __len__(self):
        return len(self.items)

def train(model, lines, optimizer, K=4):
    texts = Texts(lines)
    loader = torch.utils.data.DataLoader(texts, batch_size=2, drop_last=True)
    for _ in range(3):
        optimizer.zero_grad()
        for i, x in enumerate(loader):
            (model(x).mean() / K).backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "lines", ["lines", "enumerate(lines)", "zip(lines, other)", "range(len(lines))", "read(lines)"]
)
def test_the_length_of_a_list_that_has_grown_in_turns_that_are_not_known_is_not_known(lines: str) -> None:
    assert codes(GROWN.format(lines=lines)) == ["GA301"]


def test_the_length_of_a_list_that_has_grown_in_known_turns_is_known() -> None:
    assert codes(GROWN.format(lines="range(16)")) == []
    assert codes(GROWN.format(lines="[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]")) == ["GA301"]


ITEMS = """\
class Trainer:
    def __init__(self, optimizers, others):
        self.optimizers, self.others, self.losses = optimizers, others, {{}}

    def clear(self):
        for optimizer in self.{cleared}.values():
            optimizer.zero_grad()

    def update(self):
        for name, optimizer in self.{stepped}.items():
            optimizer.step()

    def train(self, batches):
        for batch in batches:
            self.clear()
            self.losses["total"].backward()
            self.update()
"""


def test_the_values_of_a_mapping_are_the_same_with_their_keys_and_without() -> None:
    assert codes(ITEMS.format(cleared="optimizers", stepped="optimizers")) == []
    assert codes(ITEMS.format(cleared="others", stepped="optimizers")) == ["GA204"]


@pytest.mark.parametrize(
    ("setup", "reads"),
    [
        ("settings = types.SimpleNamespace(n_micro=4)", "settings.n_micro"),
        ('settings = {"n_micro": 4}', 'settings["n_micro"]'),
        ("settings = types.SimpleNamespace(n_micro=4)", 'getattr(settings, "n_micro")'),
    ],
)
@pytest.mark.parametrize(
    ("scale", "codes"), [(" / heads / {k}", []), (" / heads", ["GA101"]), (" / heads / {k} / {k}", ["GA102"])]
)
def test_a_setting_has_its_name_wherever_it_is_read(setup: str, reads: str, scale: str, codes: list[str]) -> None:
    source = f"""
import torch, types
from torch.nn import functional as F
{setup}
heads = 4
def train(model, loader, optimizer):
    for i, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y){scale.format(k=reads)}
        loss.backward()
        if (i + 1) % {reads} == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.zero_grad()
"""
    assert [f.mistake.code for f in lint_source(source, "train.py") if f.mistake.code != "GA301"] == codes


@pytest.mark.parametrize("divisor", ["(number - 1) % K + 1", "min(K, number)"])
def test_what_is_computed_from_a_counter_is_nobodys_constant(divisor: str) -> None:
    source = f"""
import torch
from torch.nn import functional as F
K = 3
def update(model, optimizer, divisor):
    for p in model.parameters():
        p.grad.div_(divisor)
    optimizer.step()
    optimizer.zero_grad()
def train(model, loader, optimizer):
    for number, (x, y) in enumerate(loader, 1):
        F.mse_loss(model(x), y).backward()
        if number % K == 0:
            update(model, optimizer, {divisor})
    optimizer.zero_grad()
"""
    assert codes_in(source) == ["GA301"]


def test_a_name_that_has_the_letters_of_a_count_of_batches_in_it_is_none() -> None:
    source = """\
def train(args, model, loader, optimizer, criterion):
    seen = 0
    for x, y in loader:
        seen += 1
        (criterion(model(x), y) / args.{name}).backward()
        if seen == args.{name}:
            optimizer.step()
            optimizer.zero_grad()
            seen = 0
"""
    assert codes(source.format(name="train_iter_size")) == ["GA301"]
    # Whoever steps once in a pass, after all of its batches, has no remainder.
    assert codes(source.format(name="n_iter")) == []
