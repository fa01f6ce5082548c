"""What a program offers, and has not set: a K of 1, a writer, a scaler, another beginning."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

OFFERS_A_WINDOW = """\
import torch

def train(net, loader, optimizer, criterion, accum_steps={default}):
    for i, (x, y) in enumerate(loader):
        {clears}
        loss = criterion(net(x), y) / accum_steps
        loss.backward()
        if {closes}:
            optimizer.step()
            {clears_then}

def main(rows):
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(rows, batch_size=8)
    for epoch in range(9):
        train(net, loader, optimizer, torch.nn.MSELoss())

main(load_rows())
"""


@pytest.mark.parametrize(
    ("default", "clears", "closes", "found"),
    [
        ("1", "optimizer.zero_grad()", "(i + 1) % accum_steps == 0", ["GA201"]),
        ("1", "pass", "(i + 1) % accum_steps == 0", ["GA301"]),
        ("1", "pass", "i % accum_steps == 0", ["GA301", "GA302"]),
        # Whoever counts to nothing steps with each, and says so.
        ("1", "pass", "True", []),
        # What is set is no offer: windows of 2, and each micro-batch cleared.
        ("2", "optimizer.zero_grad()", "(i + 1) % accum_steps == 0", ["GA201"]),
    ],
)
def test_a_k_of_1_that_a_function_counts_to_is_offered(
    default: str, clears: str, closes: str, found: list[str]
) -> None:
    clears_then = "optimizer.zero_grad()" if clears == "pass" else "pass"
    source = OFFERS_A_WINDOW.format(default=default, clears=clears, closes=closes, clears_then=clears_then)
    assert codes_in(source) == found


OFFERS_IT_TO_AN_OBJECT = """\
import torch

class Trainer:
    def __init__(self, net, optimizer, grad_accum=1, {also}):
        self.net, self.optimizer, self.{held} = net, optimizer, grad_accum

    def run(self, loader, criterion):
        for i, (x, y) in enumerate(loader):
            self.optimizer.zero_grad()
            loss = criterion(self.net(x), y)
            loss.backward()
            {steps}

net = torch.nn.Linear(3, 1)
trainer = Trainer(net, torch.optim.SGD(net.parameters(), lr=0.1))
trainer.run(torch.utils.data.DataLoader(load_rows(), batch_size=8), torch.nn.MSELoss())
"""


def test_so_is_one_that_an_object_counts_to() -> None:
    steps = "if (i + 1) % self.grad_accum == 0: self.optimizer.step()"
    assert "GA201" in codes_in(OFFERS_IT_TO_AN_OBJECT.format(also="rate=1", held="grad_accum", steps=steps))
    assert (
        codes_in(OFFERS_IT_TO_AN_OBJECT.format(also="rate=1", held="grad_accum", steps="self.optimizer.step()")) == []
    )


GIVEN_OR_NOT = """\
import torch

def train(net, loader, optimizer, criterion, k, writer=None, scaler=None):
    for i, (x, y) in enumerate(loader):
        loss = criterion(net(x), y)
        whole = loss.detach()
        loss = loss / k
        if scaler is not None:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if (i + 1) % k == 0 or i + 1 == len(loader):
            {clips}
            if scaler is not None:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
        if writer is not None:
            rate = optimizer.param_groups[0]["lr"]
            writer.add_scalar("loss", {shown}, i)
            writer.add_scalar("rate", rate, i)
"""
CLIPS = "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)"


@pytest.mark.parametrize(
    ("clips", "shown", "found"),
    [
        ("pass", "loss.item()", {"GA802"}),
        ("pass", "whole.item()", set()),
        (CLIPS, "whole.item()", {"GA501"}),
        (f"scaler is None or scaler.unscale_(optimizer); {CLIPS}", "whole.item()", set()),
    ],
)
def test_what_a_loop_does_with_what_it_may_be_given_is_seen(clips: str, shown: str, found: set[str]) -> None:
    assert {code for code in codes_in(GIVEN_OR_NOT.format(clips=clips, shown=shown)) if code != "GA103"} == found


RESUMES = """\
import torch

def train(net, loader, optimizer, criterion, args):
    global_step = {beginning}
    if args.resume:
        checkpoint = torch.load(args.resume)
        net.load_state_dict(checkpoint["net"])
        global_step = checkpoint["global_step"]
    for epoch in range(args.epochs):
        for x, y in loader:
            loss = criterion(net(x), y) / args.k
            loss.backward()
            {counts}
            if global_step % args.k == 0:
                optimizer.step()
                optimizer.zero_grad()
            {counts_then}
"""


def test_a_training_is_read_from_its_beginning() -> None:
    late = RESUMES.format(beginning="0", counts="pass", counts_then="global_step += 1")
    assert "GA302" in codes_in(late)
    assert "GA302" not in codes_in(RESUMES.format(beginning="0", counts="global_step += 1", counts_then="pass"))
    # A beginning that no number states may be anywhere in a window.
    assert "GA302" not in codes_in(
        RESUMES.format(beginning="args.first", counts="pass", counts_then="global_step += 1")
    )


GOES_ON_FROM = """\
import torch

def train(net, loader, optimizer, criterion, k, **kwargs):
    average = 0.0
    for i, (x, y) in enumerate(loader):
        loss = criterion(net(x), y){divides}
        (loss{divides_then}).backward()
        first = kwargs.get("{name}", 0)
        average = (average * (i + first) + loss.item()) / (i + first + 1)
        if (i + 1) % k == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
    print(average)
"""


def test_a_mean_that_goes_on_is_read_from_its_beginning_too() -> None:
    assert "GA802" in codes_in(GOES_ON_FROM.format(name="start_step", divides=" / k", divides_then=""))
    assert "GA802" not in codes_in(GOES_ON_FROM.format(name="start_step", divides="", divides_then=" / k"))


LEFT_OPEN = """\
import torch

class Base:
    def objective(self, batch):
        raise {refuses}
        return

    def fit(self, net, loader, optimizer, k):
        for i, batch in enumerate(loader):
            loss = self.objective(batch) / k
            loss.backward()
            if (i + 1) % k == 0:
                optimizer.step()
                optimizer.zero_grad()
        optimizer.zero_grad()
"""


def test_what_follows_an_exception_leaves_a_method_open_all_the_same() -> None:
    assert codes_in(LEFT_OPEN.format(refuses="NotImplementedError")) == ["GA301"]
    assert codes_in(LEFT_OPEN.format(refuses="RuntimeError('no')")) == []


HELD_BY_A_BASE = """\
import torch
from elsewhere import Base

class Trainer(Base):
    def epoch(self, net, loader, k):
        for i, (x, y) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(net(x), y) / k
            loss.backward()
            if i % k == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
                {call}
"""


def test_a_method_of_what_an_object_holds_is_not_inherited() -> None:
    assert "GA302" in codes_in(HELD_BY_A_BASE.format(call='self.writer.update("loss", i)'))
    assert codes_in(HELD_BY_A_BASE.format(call='self.update("loss", i)')) == []


IN_A_LIST = """\
import torch

K = 8
net = build()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in torch.utils.data.DataLoader(load_rows()):
    outputs = net(x)
    losses = [0] * count_of(outputs)
    for j in range(count_of(outputs)):
        losses[j] = distance(outputs[j], y)
    loss = 0.5 * sum(losses[:-1]) + losses[-1]
    {early}
    loss /= {divisor}
    loss.backward()
    seen += 1
    if seen % K == 0:
        print({shown})
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("early", "divisor", "shown", "misreported"),
    [
        ("pass", "K", "loss.item()", True),
        ("whole = loss.item()", "K", "whole", False),
        ("pass", "DECAY", "loss.item()", False),
    ],
)
def test_what_a_loop_divides_by_its_own_count_is_a_loss(
    early: str, divisor: str, shown: str, misreported: bool
) -> None:
    source = "seen = 0\nDECAY = 8.0\n" + IN_A_LIST.format(early=early, divisor=divisor, shown=shown)
    assert ("GA802" in codes_in(source)) is misreported


WITH_A_CONSTANT_TERM = """\
import torch

def train(net, old, loader, optimizer, k):
    for i, (x, y) in enumerate(loader):
        with torch.no_grad():
            before = torch.nn.functional.mse_loss(old(x), y)
        loss = torch.nn.functional.mse_loss(net(x), y) - before
        loss = loss{divides}
        loss.backward()
        print(loss.item(){times})
        if (i + 1) % k == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("divides", "times", "misreported"),
    [(" / k", "", True), (" / k", " * k", False), ("", " * k", True), ("", "", False)],
)
def test_a_number_in_a_loss_is_shown_with_it(divides: str, times: str, misreported: bool) -> None:
    assert ("GA802" in codes_in(WITH_A_CONSTANT_TERM.format(divides=divides, times=times))) is misreported


RESUMED = """\
import argparse
import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--resume_at", type=int, default={default})
parser.add_argument("--every", type=int, default=8)
args = parser.parse_args()

def main(net, loader, optimizer):
    turn = 0
    if args.resume_at:
        turn = -1
    while True:
        for x, y in loader:
{changes}
            (F.cross_entropy(net(x), y) / args.every).backward()
            turn += 1
            if turn % args.every == 0:
                optimizer.step()
                optimizer.zero_grad()

main(*args.objects)
"""
CHANGE = """\
            if args.change_{number} == "scale":
                x = x * {number}
            else:
                x = x.tanh()
"""


@pytest.mark.parametrize(("default", "codes"), [("0", []), ("3", ["GA302"])])
def test_a_setting_that_is_asked_for_itself_holds_first_as_its_default_does(default: str, codes: list[str]) -> None:
    changes = "".join(CHANGE.format(number=number) for number in range(20))
    assert codes_in(RESUMED.format(default=default, changes=changes)) == codes
