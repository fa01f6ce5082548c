"""What a scenario has no voice in, and reports that take long."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

ATTACKED = """\
import torch

def train(settings, model, loader, optimizer, criterion, K):
    for epoch in range(9):
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y) / K).backward()
            if settings.attacks:
                optimizer.zero_grad()
                (criterion(model(x + 0.1), y) / K).backward()
            if (i + 1) % K == 0{flush}:
                optimizer.step()
                optimizer.zero_grad()
"""


def test_a_setting_that_clears_all_gradients_says_nothing_of_the_remainder_without_it() -> None:
    assert sorted(codes_in(ATTACKED.format(flush=""))) == ["GA201", "GA301"]
    assert sorted(codes_in(ATTACKED.format(flush=" or i + 1 == len(loader)"))) == ["GA103", "GA201"]


WEIGHED_ELSEWHERE = """\
def train(settings, model, loader, optimizer, criterion, K):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y){scaling}
        if settings.{setting}:
            loss = loss{elsewhere}
        loss.backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("setting", "scaling", "elsewhere", "expected"),
    [
        ("mixes", "", " * share_of(x)", ["GA101", "GA301"]),
        ("mixes", " / K", " * share_of(x)", ["GA301"]),
        # What is not known may be the division by K, which this setting is about.
        ("accumulates", "", " * share_of(x)", ["GA301"]),
        ("mixes", "", " / K", ["GA301"]),
    ],
)
def test_an_unknown_factor_says_nothing_of_the_scale_without_it(
    setting: str, scaling: str, elsewhere: str, expected: list[str]
) -> None:
    found = codes_in(WEIGHED_ELSEWHERE.format(setting=setting, scaling=scaling, elsewhere=elsewhere))
    assert sorted(found) == expected


REPORTED = """\
import torch

def best_of(scores):
    best = None
    for row in range(30):
        for column in range(30):
            score = scores[row] * scores[column]
            if best is None or score > best:
                best = score
    return best

def report(model, held_out):
    found = []
    with torch.no_grad():
        for x, y in held_out:
            found.append(best_of(model(x)))
    {also}
    return found

def train(model, loader, held_out, optimizer, criterion, K):
    for epoch in range(9):
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y){scaling}).backward()
            print(report(model, held_out))
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(("scaling", "codes"), [(" / K", {"GA301"}), ("", {"GA101", "GA301"})])
def test_a_long_report_does_not_keep_a_loop_from_being_followed(
    scaling: str, codes: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradcheck_accum.lint.state.state._BUDGET", 40_000)
    source = REPORTED.format(scaling=scaling, also="pass")
    assert set(codes_in(source)) == codes


def test_what_takes_long_and_changes_gradients_is_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradcheck_accum.lint.state.state._BUDGET", 40_000)
    source = REPORTED.format(scaling=" / K", also="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")
    assert "GA401" in codes_in(source)


def test_a_length_that_a_sampler_refuses_to_give_is_unknown() -> None:
    source = """\
import torch

class Buckets(torch.utils.data.Sampler):
    def __iter__(self):
        yield from self.batches()

    def __len__(self):
        raise ValueError("the number of buckets is not known")

def train(data, model, optimizer, criterion, K):
    loader = torch.utils.data.DataLoader(data, batch_sampler=Buckets(data))
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y){scaling}).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    assert "GA101" in codes_in(source.format(scaling=""))
    assert "GA101" not in codes_in(source.format(scaling=" / K"))


SCALED = """\
import torch

def train(net, loader, K, args):
    optimizer = torch.optim.SGD(net.parameters())
    scaler = torch.cuda.amp.GradScaler()
    for i, (x, y) in enumerate(loader):
        loss = net(x).mean() / K
        if args.amp:
            if {also}:
                loss = scaler.scale(loss)
        loss.backward()
        if (i + 1) % K == 0:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            {step}
            optimizer.zero_grad()
    optimizer.zero_grad()
"""
STEP = "scaler.step(optimizer); scaler.update()"
CHOSEN = f"if args.amp:\n                {STEP}\n            else: optimizer.step()"


@pytest.mark.parametrize(
    ("also", "step", "said"),
    [
        ("args.half", STEP, "when args.amp and args.half, gradients are"),
        ("args.half or args.mixed", STEP, "gradients are"),
        ("True", CHOSEN, "when args.amp, gradients are"),
    ],
    ids=["both", "one and either of two", "one"],
)
def test_a_setting_is_named_only_if_those_that_are_named_suffice(also: str, step: str, said: str) -> None:
    """With neither of the two others nothing is scaled under ``args.amp`` alone: "when args.amp" would be false."""
    source = SCALED.format(also=also, step=step)
    (message,) = [f.message for f in lint_source(source, "train.py") if f.mistake.code == "GA501"]
    assert message.startswith(f"{said} clipped before unscale_()")


SIZED = """\
import torch

def train(net, loader, args):
    optimizer = torch.optim.SGD(net.parameters())
    K = 2
    {setting}
    for i, (x, y) in enumerate(loader):
        net(x).mean().backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("setting", "steps"),
    [("if args.large: K = 8", 8), ("if not args.small: K = 8", 2)],
    ids=["with the setting", "without it"],
)
def test_a_message_tells_of_the_loop_in_which_a_setting_is_on(setting: str, steps: int) -> None:
    """Both answers make the same mistake at the same line, and their numbers differ: the setting's own are stated."""
    said = [f.message for f in lint_source(SIZED.format(setting=setting), "train.py") if f.mistake.code == "GA101"]
    assert [f"{steps} are accumulated" in message and f"weighted {steps}x" in message for message in said] == [True]
