"""What a turn of the loop computes from settings alone, and what a method that it calls does at its beginning."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

ROUNDED = """\
from torch import nn

class Fitting:
    def __init__(self, options, net, optimizer, loader):
        self.options, self.net, self.optimizer, self.loader = options, net, optimizer, loader

    def fit(self):
        self.used = -1
        self.settling = self.options.settling_epochs * len(self.loader)
        for self.epoch in range(self.options.epochs):
            {epoch}
            for self.turn, (x, y) in enumerate(self.loader):
{changes}
                loss = nn.functional.cross_entropy(self.net(x), y)
                self.window = {window}
                (loss / self.window).backward()
                self.close()

    def close(self):
        now = self.turn + self.epoch * len(self.loader)
        {settles}
        if now - self.used >= self.window:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.used = now
"""
FLUSHED = ROUNDED.replace(
    "            {epoch}\n", "            {epoch}\n            self.used = self.epoch * len(self.loader) - 1\n"
).replace("self.window:\n", "self.window or self.turn + 1 == len(self.loader):\n")
"""Steps with the last batch of each pass too, whose window's losses are divided as those of a whole one."""
WINDOWS = ["max(1, round(48 / self.options.rows))", "max(int(48 / self.options.rows), 1)", "self.options.window"]


def rounded(window: str, settles: str = "pass", changes: str = "", source: str = ROUNDED) -> list[str]:
    epoch = "self.optimizer.zero_grad()"
    return codes_in(source.format(window=window, epoch=epoch, settles=settles, changes=changes))


@pytest.mark.parametrize("window", WINDOWS)
def test_what_a_turn_computes_of_settings_alone_is_one_number(window: str) -> None:
    assert rounded(window) == ["GA301"]
    assert rounded(window, source=ROUNDED.replace("(loss / self.window)", "loss")) == ["GA101", "GA301"]


@pytest.mark.parametrize("window", ["max(1, 48 // len(x))", "max(1, round(48 / self.net.rows(x)))"])
def test_what_it_computes_of_its_data_is_another_number_in_every_turn(window: str) -> None:
    assert rounded(window) == []


SETTLING = "if now {compared} self.settling: self.window = max(1, self.options.grown(now, self.window).round())"
CHANGE = """\
                if self.options.change_{number} == "scale":
                    x = x * {number}
                else:
                    x = x.tanh()
"""


@pytest.mark.parametrize("compared", ["<", "<="])
def test_a_method_that_a_turn_calls_tells_its_phases_as_the_loop_would(compared: str) -> None:
    # While the training settles, windows are of lengths that nothing shows; afterwards they are known. Of the many
    # settings, none keeps the last phase from being followed.
    settles = SETTLING.format(compared=compared)
    changes = "".join(CHANGE.format(number=number) for number in range(20))
    assert rounded(WINDOWS[0], settles=settles, changes=changes) == ["GA301"]
    assert rounded(WINDOWS[0], settles=settles, changes=changes, source=FLUSHED) == ["GA103"]
