"""Micro-batches that a turn of the loop gets from a call which is given nothing, whatever it is called."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

HEAD = """\
import torch
from torch import nn
from torch.nn import functional as F
from tools import build, feeding, rewards_of

"""
LOOP = """\
def train(data, feed, schedule, first, last):
    {before}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(first, last):
        {get}
        loss = {loss}
        (loss{scaling}).backward()
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
GETS = {
    "pairs": ("model = nn.Linear(5, 2)", "x, y = feed.get()", "F.cross_entropy(model(x), y)"),
    "moved to a device": ("model = build()", "x, y = feed(); x = x.cuda()", "F.cross_entropy(model(x), y)"),
    "a model from elsewhere": ("model = build()", "seen = feed.draw()", "F.mse_loss(model(seen), seen)"),
    "what is made of a loader": (
        "model = nn.Linear(5, 2); turns = feeding.Round(torch.utils.data.DataLoader(data, batch_size=5))",
        "x, y = turns.following()",
        "F.cross_entropy(model(x), y)",
    ),
    "by names": ("model = build()", "seen = feed.pull()", 'F.cross_entropy(model(seen["x"]), seen["y"])'),
}


def codes(source: str) -> list[str]:
    return sorted(codes_in(HEAD + source))


@pytest.mark.parametrize("parts", GETS.values(), ids=GETS.keys())
def test_every_turn_gets_a_micro_batch(parts: tuple[str, str, str]) -> None:
    before, get, loss = parts
    assert codes(LOOP.format(before=before, get=get, loss=loss, scaling="")) == ["GA101"]
    assert codes(LOOP.format(before=before, get=get, loss=loss, scaling=" / 3")) == []


def test_what_a_turn_gets_beside_its_data_is_none() -> None:
    source = """\
def train(model, loader, feed, optimizer):
    for i, (x, y) in enumerate(loader):
        {get}
        loss = F.cross_entropy(model(x, heat) / heat, y) / 3
        loss.backward()
        if (i + 1) % 3 == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""
    expected = codes(source.format(get="heat = 0.7"))
    for get in ("heat = schedule.value()", "heat = feed.pull()", "heat = torch.rand(5); model(feed.pull())"):
        assert codes(source.format(get=get)) == expected


def test_what_a_turn_gets_twice_is_one_micro_batch() -> None:
    before, loss = "model = nn.Linear(5, 2)", "F.mse_loss(model(x), model(noise))"
    for get in ("x = feed.get(); noise = feed.noise()", "x, noise = feed.get(), feed.get()"):
        assert codes(LOOP.format(before=before, get=get, loss=loss, scaling=" / 3")) == []


def test_several_losses_of_what_a_turn_got_are_no_micro_batches() -> None:
    source = """\
def train(feed, tries):
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for turn in range(400):
        x, y = feed.get()
        for attempt in range(tries):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    assert codes(source) == []


def test_what_a_setting_is_asked_for_in_the_loop_is_a_setting_still() -> None:
    source = """\
def train(model, loader, config, optimizer):
    for i, (x, y) in enumerate(loader):
        (F.cross_entropy(model(x), y){scaling}).backward()
        if (i + 1) % config.window() == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""
    assert "GA101" in codes(source.format(scaling=""))
    assert "GA101" not in codes(source.format(scaling=" / config.window()"))


def test_an_episode_whose_rewards_are_summed_up() -> None:
    source = """\
def train(env, policy, optimizer):
    for episode in range(12):
        state, done, losses = env.reset(), False, []
        while not done:
            choice = torch.distributions.Categorical(logits=policy(state))
            action = choice.sample()
            state, reward, done = env.step(action)
            losses.append(-choice.log_prob(action) * reward)
        torch.stack(losses).sum().backward()
        if (episode + 1) % 5 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    assert codes(source) == []


CUT = """\
def train(samples, model, optimizer, size, device, K=3):
    for step in range(len(samples) // size):
        batch = {cut}
        x = {made}
        loss = model(input_ids=x, labels=x)[0]
        (loss{scaling}).backward()
        if (step + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
CUTS = [
    ("samples[step * size: (step + 1) * size]", "torch.tensor(batch).long().to(device)"),
    ("samples[step * 4:step * 4 + 4]", "batch"),
]


@pytest.mark.parametrize(("cut", "made"), CUTS)
def test_what_a_turn_cuts_out_of_something_unknown_is_its_data(cut: str, made: str) -> None:
    source = HEAD + CUT.format(cut=cut, made=made, scaling="")
    assert "GA101" in codes_in(source)
    right = HEAD + CUT.format(cut=cut, made=made, scaling=" / K")
    assert set(codes_in(right)) <= {"GA301"}


@pytest.mark.parametrize("cut", ["samples[:size]", "samples[2:size]"])
def test_what_is_the_same_in_every_turn_is_not_known_to_be_new(cut: str) -> None:
    source = HEAD + CUT.format(cut=cut, made="batch", scaling="")
    assert lint_source(source, "train.py") == []


WRAPPED = """\
from progress import Bar, around

def train(model, loader, batches, optimizer, criterion, K=4):
    for epoch in range(3):
        {before}
        for i, {item} in enumerate({source}):
            {loss}.backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


@pytest.mark.parametrize("source", ["Bar(loader)", "Bar(loader, epoch)", "around(loader, title='training')"])
def test_a_progress_bar_around_a_loader_gives_its_batches(source: str) -> None:
    for before, given in (("pass", source), (f"bar = {source}", "bar")):
        code = WRAPPED.format(before=before, item="(x, y)", source=given, loss="criterion(model(x), y)")
        assert codes_in(code) == ["GA101", "GA301"]
        divided = WRAPPED.format(before=before, item="(x, y)", source=given, loss="(criterion(model(x), y) / K)")
        assert codes_in(divided) == ["GA301"]


@pytest.mark.parametrize("before", ["x = next(batches); losses = around(model(x))", "losses = model(next(batches))"])
def test_what_a_model_made_of_data_is_no_data(before: str) -> None:
    code = WRAPPED.format(before=before, item="loss", source="losses", loss="loss")
    assert codes_in(code) == []


CUT_FROM_A_LIST = """\
def train(path, rounds, width, batch_size, every):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(rounds):
        words, pieces, begin = open(path).read().split(), [], 0
        while begin < len(words) - width:
            pieces.append(words[begin : begin + width])
            begin += width
        for turn in range(len(pieces) // batch_size):
            part = pieces[turn * batch_size : (turn + 1) * batch_size]
            rows = []
            for piece in part:
                rows.append([int(word) for word in piece])
            seen = torch.tensor(rows).long().cuda()
            loss = model(seen, labels=seen)[0]{scaling}
            loss.backward()
            {each}
            if (turn + 1) % every == 0{flush}:
                {once}
                optimizer.step()
                optimizer.zero_grad()
"""
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


def test_what_a_turn_cuts_out_of_a_list_of_unknown_length_is_its_micro_batch() -> None:
    filled = CUT_FROM_A_LIST.format(scaling=" / every", each=CLIP, flush="", once="pass")
    assert codes(filled) == ["GA301", "GA401"]
    filled = CUT_FROM_A_LIST.format(scaling="", each="pass", flush="", once=CLIP)
    assert codes(filled) == ["GA101", "GA301"]
    whole = " or (turn + 1) * batch_size >= len(pieces)"
    filled = CUT_FROM_A_LIST.format(scaling=" / every", each="pass", flush=whole, once=CLIP)
    assert codes(filled) == []


def test_what_a_turn_uses_first_after_its_backward_is_no_data_of_it() -> None:
    source = """\
from accelerate import Accelerator

class Tuner:
    def __init__(self, settings, pipe):
        self.accelerator = Accelerator(gradient_accumulation_steps=settings.parts)
        self.settings, self.pipe = settings, pipe
        self.optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)

    def step(self):
        scores = []
        for _ in range(self.settings.parts):
            with self.accelerator.accumulate(self.pipe):
                loss, score = self.pipe.rated(self.pipe.drawn(self.settings.rows))
                self.accelerator.backward(loss.mean())
                self.optimizer.step()
                self.optimizer.zero_grad()
            scores.append(feeding.last())
            print(torch.tensor(scores).mean())
"""
    assert codes(source) == []


MADE_IN_THE_LOOP = """\
def made(rows):
    kind = torch.randint(0, 3, (rows,))
    points = torch.randn(rows, 8)
    {data}
    return seen, kind

def train(steps):
    centres, model = torch.randn(3, 8), nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    every = 5
    for i in range(30):
        seen, kind = made(12)
        loss = nn.functional.cross_entropy(model(seen), kind) / every
        loss.backward()
        if {test}:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "data",
    [
        "seen = points * 2 + torch.randn(rows, 8)",
        "seen = points + 0.1 * torch.randn_like(points)",
        "seen = torch.ones(3, 8)[kind] + points",
        "seen = torch.stack([points, nn.functional.normalize(points)], 1)[torch.arange(rows), kind % 2]",
    ],
)
def test_what_a_turn_computes_from_random_numbers_is_its_micro_batch(data: str) -> None:
    assert codes(MADE_IN_THE_LOOP.format(data=data, test="(i + 1) % every == 0")) == []
    assert codes(MADE_IN_THE_LOOP.format(data=data, test="i % every == 0")) == ["GA302"]


def test_a_product_of_matrices_may_be_a_model() -> None:
    source = """\
weights = torch.zeros(8, 1, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.1)
for i in range(30):
    seen = torch.randn(12, 8)
    loss = nn.functional.mse_loss(seen @ weights, seen.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    assert codes(source) == []
