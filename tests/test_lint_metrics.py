"""GA802: means of losses that were divided by K, shown as the loss; and the many ways to show it right."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in, filled

from gradcheck_accum.lint import lint_source

LOOP = """\
import logging, math, wandb
import numpy as np
import torch
from tqdm import tqdm
from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger(__name__)
writer = SummaryWriter()

class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def mean(self):
        return self.sum / self.count

def train(model, loader, optimizer, criterion, K, epochs):
    for epoch in range(epochs):
        running, losses, meter, bar, updates = 0.0, [], Meter(), tqdm(loader), 0
        for i, (x, y) in enumerate(bar):
            loss = criterion(model(x), y)
            {early}
            {divide}
            {backward}
            {each}
            if (i + 1) % K == 0:
                {scale}
                optimizer.step()
                optimizer.zero_grad()
                updates += 1
                {inside}
        optimizer.zero_grad()
        {end}
"""


USUAL = {"divide": "loss = loss / K", "backward": "loss.backward()"}


def codes(**places: str) -> list[str]:
    return codes_in(filled(LOOP, **(USUAL | places)))


def is_flagged(**places: str) -> bool:
    found = codes(**places)
    assert set(found) <= {"GA301", "GA802"}
    return "GA802" in found


ADD = "running += loss.item()"


@pytest.mark.parametrize(
    "end",
    [
        "print(running / len(loader))",
        "print('loss', round(running / len(loader), 4))",
        "print(f'loss {running / len(loader):.3f}')",
        "print('loss %.3f' % (running / len(loader)))",
        "print('loss {}'.format(running / len(loader)))",
        "logger.info('loss %s', running / len(loader))",
        "writer.add_scalar('loss', running / len(loader), epoch)",
        "wandb.log({'loss': running / len(loader)})",
        "mean = running / len(loader); print(mean)",
    ],
)
def test_a_mean_over_micro_batches_of_divided_losses(end: str) -> None:
    assert is_flagged(each=ADD, end=end)


@pytest.mark.parametrize(
    ("each", "end"),
    [
        ("running += float(loss)", "print(running / len(loader))"),
        ("running += loss.detach()", "print(running / len(loader))"),
        ("running += loss.detach().item()", "print(running / (i + 1))"),
        ("losses.append(loss.item())", "print(sum(losses) / len(losses))"),
        ("losses.append(loss.item())", "print(np.mean(losses))"),
        ("meter.update(loss.item())", "print(meter.mean)"),
        ("running += loss.item(); bar.set_postfix(loss=running / (i + 1))", "pass"),
    ],
)
def test_other_ways_to_the_same_mean(each: str, end: str) -> None:
    assert is_flagged(each=each, end=end)


def test_a_loss_of_several_terms_of_one_output() -> None:
    early = "out = model(x); loss = criterion(out, y) + out.pow(2).mean() + out.abs().mean()"
    assert is_flagged(early=early, each=ADD, end="print(running / len(loader))")
    assert not is_flagged(early=f"{early}; {ADD}", end="print(running / len(loader))")


def test_a_window_averaged_once_more() -> None:
    assert is_flagged(each=ADD, inside="print(running / K); running = 0.0")


@pytest.mark.parametrize(
    ("places", "flagged"),
    [
        ({"each": "print(loss.item())"}, True),
        ({"each": "bar.set_postfix(loss=loss.item())"}, True),
        ({"inside": "writer.add_scalar('loss', loss.item(), updates)"}, True),
        ({"each": "print(f'{loss.item():.3f}') if i % 100 == 0 else None"}, True),
        ({"early": "whole = loss.item()", "each": "print(whole / K)"}, True),
        # An open condition that counts nothing holds for someone.
        ({"each": "if settings.verbose: print(loss.item())"}, True),
        ({"each": "if settings.writer is not None: settings.writer.add_scalar('loss', float(loss.item()), i)"}, True),
        ({"each": "if settings.verbose: print(loss.item() * K)"}, False),
        ({"each": "print(loss.item() * K)"}, False),
        ({"early": "whole = loss.item()", "each": "print(whole)"}, False),
        ({"divide": "pass", "backward": "(loss / K).backward()", "each": "print(loss.item())"}, False),
        ({"each": "print(f'scaled loss {loss.item():.3f}')"}, False),
        ({"each": "print('scaled loss', loss.item())"}, False),
        # Whoever gets it may add it up over the window.
        ({"each": "yield loss.item()"}, False),
        ({"each": "if i > 7: return loss.item()"}, False),
    ],
)
def test_the_divided_loss_of_one_micro_batch(places: dict[str, str], flagged: bool) -> None:
    assert is_flagged(**places) is flagged


FLUSHED = """\
import torch
loader = [(torch.randn(4, 4), torch.randn(4, 3)) for _ in range(5)]
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
K = 2
for i, (x, y) in enumerate(loader):
    raw = torch.nn.functional.mse_loss(model(x), y)
    loss = raw / min(K, len(loader) - i // K * K)
    loss.backward()
    if (i + 1) % K == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
    if (i + 1) % {every} == 0:
        print("loss", {shown}.item())
"""


@pytest.mark.parametrize(
    ("every", "shown", "expected"),
    # The fifth micro-batch is a window of its own, whose loss nothing divides.
    [(5, "raw", []), (5, "loss", []), (4, "raw", []), (4, "loss", ["GA802"]), (1, "raw", []), (1, "loss", ["GA802"])],
)
def test_the_loss_of_a_window_of_one_is_not_divided(every: int, shown: str, expected: list[str]) -> None:
    assert codes_in(FLUSHED.format(every=every, shown=shown)) == expected


def test_the_message_on_one_micro_batch_says_what_it_is() -> None:
    message = few(each="print(loss.item())")
    assert "is that of a micro-batch, already divided by 4 for accumulation (backward at line" in message
    assert "it is 1/4 of the loss" in message


@pytest.mark.parametrize("divide", ["loss /= K", "loss = loss * (1 / K)", "loss = torch.div(loss, K)"])
def test_other_ways_to_divide(divide: str) -> None:
    assert is_flagged(divide=divide, each=ADD, end="print(running / len(loader))")


@pytest.mark.parametrize(
    ("places", "flagged"),
    [
        ({"early": ADD, "divide": "loss = loss / 9; loss = loss * weight"}, False),
        ({"divide": "loss = loss / 9; loss = loss * weight", "each": ADD}, True),
        ({"divide": "loss = loss / 9", "each": ADD, "backward": "(loss * weight).backward()"}, True),
    ],
)
@pytest.mark.parametrize("weight", ["9", "0.7"])
def test_a_weight_of_the_objective_divides_nothing(places: dict[str, str], flagged: bool, weight: str) -> None:
    loop = filled(LOOP, **(USUAL | {"end": "print(running / len(loader))"} | places))
    source = f"weight = {weight}\n" + loop.replace("% K", "% 9")
    assert ("GA802" in codes_in(source)) is flagged


@pytest.mark.parametrize(
    "places",
    [
        # Multiplied back, or read before the division.
        {"each": "running += loss.item() * K", "end": "print(running / len(loader))"},
        {"each": ADD, "end": "print(running * K / len(loader))"},
        {"early": ADD, "end": "print(running / len(loader))"},
        {"divide": "pass", "backward": "(loss / K).backward()", "each": ADD, "end": "print(running / len(loader))"},
        {
            "divide": "scaled = loss / K",
            "backward": "scaled.backward()",
            "each": ADD,
            "end": "print(running / (i + 1))",
        },
        # Sums over windows, and means over windows.
        {"each": ADD, "inside": "print(running); running = 0.0"},
        {"each": ADD, "end": "print(running / updates)"},
        {"each": ADD, "end": "print(running / (len(loader) / K))"},
        {"each": ADD, "end": "print(running)"},
        # Divided on the gradients, not on the loss.
        {
            "divide": "pass",
            "scale": "for p in model.parameters(): p.grad.div_(K)",
            "each": ADD,
            "end": "print(running / len(loader))",
        },
        # Not known to be a mean, not known to be shown, or known to be scaled.
        {"each": "running += loss.item() * len(x) * K", "end": "print(running / len(loader.dataset))"},
        {"each": "running += loss.item() * len(x)", "end": "print(running / len(loader))"},
        {"early": "running += loss.item() * len(x)", "end": "print(running / len(loader.dataset))"},
        {"each": ADD, "end": "print(running / len(loader.dataset))"},
        {"each": ADD, "end": "save(running / len(loader))"},
        {"each": ADD, "end": "print(running / len(train_data))"},
        {"each": ADD, "end": "print('scaled loss', running / len(loader))"},
        {"each": "running = 0.9 * running + 0.1 * loss.item()", "end": "print(running)"},
        # A sum that is still growing.
        {"each": "running += loss.item(); print(running) if i % 100 == 0 else None"},
        {"each": "running += loss.detach(); print(running.item()) if i % 100 == 0 else None"},
    ],
)
def test_what_is_right_or_not_certain(places: dict[str, str]) -> None:
    assert not is_flagged(**places)


@pytest.mark.parametrize(
    ("each", "end"),
    [
        # Returned to whoever trains with the file.
        (ADD, "return running / len(loader)"),
        (ADD, "return {'loss': running / len(loader)}, 0.5"),
        ("losses.append(loss.item())", "return np.mean(losses)"),
        # The last index for the number.
        (ADD, "print(running / i)"),
        (ADD, "running /= i; print(running)"),
        # By rows.
        ("running += loss.item() * len(x)", "print(running / len(loader.dataset))"),
        ("running += loss.item() * x.shape[0]", "print(running / len(train_dataset))"),
        # In other words.
        (ADD, "print(str(np.round(running / len(loader), 4)))"),
        # As a perplexity.
        (ADD, "print(math.exp(running / len(loader)))"),
        (ADD, "print('ppl', round(np.exp(running / len(loader)), 2))"),
        # As an item of what the source does not show.
        (ADD, "stats['loss'] = running / len(loader)"),
        (ADD, "log_metrics_of({'loss': running / len(loader)})"),
        ("running += loss.data.float().cpu().numpy().item()", "print(running / len(loader))"),
        ("losses.append(loss.detach())", "print(torch.stack(losses).mean().item())"),
        ("losses.append(loss.item())", "print(np.array(losses).mean())"),
        ("losses.append(loss.item())", "print(torch.tensor(losses).mean().item())"),
    ],
)
def test_the_same_mean_by_other_ways_still(each: str, end: str) -> None:
    assert is_flagged(each=each, end=end)


@pytest.mark.parametrize(
    "places",
    [
        {"each": ADD, "end": "return running / len(loader) * K"},
        {"each": ADD, "end": "return running"},
        {"each": ADD, "end": "return running / updates"},
        {"each": ADD, "end": "return loss.item()"},
        {"early": ADD, "end": "print(running / i)"},
        {"each": ADD, "inside": "losses.append(running); running = 0.0", "end": "return sum(losses) / len(losses)"},
        {"early": "raw = loss.detach()", "each": "losses.append(raw)", "end": "print(torch.stack(losses).mean())"},
    ],
)
def test_what_is_returned_or_one_off_may_be_right(places: dict[str, str]) -> None:
    assert not is_flagged(**places)


@pytest.mark.parametrize(
    ("places", "flagged"),
    [
        ({"divide": "pass", "each": "running += loss.item() * K", "end": "print(running / len(loader))"}, True),
        ({"early": "running += loss.item() * K", "end": "print(running / len(loader))"}, True),
        ({"divide": "pass", "each": "stats['loss'] = loss.item() * K"}, True),
        (
            {"each": "running += loss.item() * K", "inside": "losses.append(running); running = 0.0; print(losses)"},
            True,
        ),
        (
            {
                "each": "running += loss.item() * K",
                "inside": "losses.append(running / K); running = 0.0; print(losses)",
            },
            False,
        ),
        ({"each": "stats['loss'] = loss.item() * K"}, False),
        ({"divide": "pass", "each": "stats['loss'] = loss.item() * other"}, False),
        ({"divide": "pass", "each": "stats['loss'] = loss.item() * 7"}, False),
        ({"divide": "pass", "each": "running += loss.item() * K", "end": "print(running / len(loader) / K)"}, False),
        ({"divide": "pass", "each": "stats['loss'] = loss.item()"}, False),
        ({"each": "running += loss.item()", "end": "print(math.exp(running / len(loader) * K))"}, False),
        ({"each": "stats['loss'] = loss.item()"}, False),
    ],
)
def test_what_is_multiplied_by_k_though_that_undoes_no_division(places: dict[str, str], flagged: bool) -> None:
    assert ("GA802" in codes(**places)) is flagged


WITH_A_SHORT_WINDOW = """\
def train(model, loader, optimizer, criterion, K):
    total, windows = 0.0, 0
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / K
        loss.backward()
        total += {each}
        if (i + 1) % K == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
            windows += 1
            print({shown})
"""


@pytest.mark.parametrize(
    ("each", "shown", "flagged"),
    [
        # What the short window at the end makes of it is another share, and does not speak for the others.
        ("loss.item() * K", "total / windows", True),
        ("loss.item() * K", "total / (i + 1)", False),
        ("loss.item()", "total / windows", False),
        ("loss.item()", "total / (i + 1)", True),
    ],
)
def test_a_mean_that_is_shown_over_a_short_window_too(each: str, shown: str, flagged: bool) -> None:
    assert ("GA802" in codes_in(WITH_A_SHORT_WINDOW.format(each=each, shown=shown))) is flagged


IGNITE = """\
from ignite.engine import Engine
from ignite.metrics import RunningAverage

def train(model, optimizer, criterion, loader, K):
    def update(engine, batch):
        x, y = batch
        loss = criterion(model(x), y)
        {early}
        loss = loss / K
        loss.backward()
        if engine.state.iteration % K == 0:
            optimizer.step()
            optimizer.zero_grad()
        return {returned}
    trainer = Engine(update)
    RunningAverage(output_transform=lambda out: out).attach(trainer, "loss")
    trainer.run(loader, max_epochs=3)
"""


@pytest.mark.parametrize(
    ("early", "returned", "flagged"),
    [
        ("pass", "loss.item()", True),
        ("pass", "{'loss': loss.item()}", True),
        ("pass", "(loss.item(), optimizer.param_groups[0]['lr'])", True),
        ("pass", "{'loss': loss.item() * K, 'rows': len(x)}", False),
        ("whole = loss.item()", "{'loss': whole}", False),
        ("pass", "None", False),
    ],
)
def test_what_the_function_of_an_engine_returns_is_reported(early: str, returned: str, flagged: bool) -> None:
    assert ("GA802" in codes_in(IGNITE.format(early=early, returned=returned))) is flagged


def few(**places: str) -> str:
    """The message about a sum over the last micro-batches of windows; empty where there is none."""
    text = filled(LOOP, **(USUAL | places))
    return next((f.message for f in lint_source(text, "train.py") if f.mistake.code == "GA802"), "")


def test_the_losses_of_the_last_micro_batches_alone_over_the_number_of_all() -> None:
    divided = few(inside=ADD, end="print(running / len(loader))")
    assert "over the last micro-batch of each window alone, each already divided" in divided
    assert "1/4²" in divided
    undivided = few(early="raw = loss", inside="running += raw.item()", end="print(running / len(loader))")
    assert "over the last micro-batch of each window alone (backward" in undivided
    assert "about 1/4 of" in undivided
    assert few(early="raw = loss", inside="running += raw.item()", end="print(running / updates)") == ""
    assert "last micro-batch" not in few(early="raw = loss", inside="print(raw.item() / K)")


def test_a_loss_that_is_not_divided_is_shown_right() -> None:
    found = codes(divide="pass", each=ADD, end="print(running / len(loader))")
    assert "GA101" in found
    assert "GA802" not in found


def test_the_message_names_both_places() -> None:
    text = filled(LOOP, **(USUAL | {"each": ADD, "end": "print(running / len(loader))"}))
    (finding,) = [f for f in lint_source(text, "train.py") if f.mistake.code == "GA802"]
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "backward" in line or "print(run" in line]
    assert text.splitlines()[finding.where.line - 1].strip() == ADD
    assert all(f"line {number}" in finding.message for number in lines)


SINCE_SHOWN = """\
class Trainer:
    def train(self, model, batches, optimizer, criterion, K, every):
        batches, running = iter(batches), 0.0
        while True:
            for i in range(K):
                x, y = next(batches)
                loss = criterion(model(x), y)
                running += loss.item()
                (loss / K).backward()
            optimizer.step()
            optimizer.zero_grad()
            {count} += 1
            if {count} % every == 0:
                print(running / (every * K))
                running = 0.0
"""


@pytest.mark.parametrize("count", ["self.state.steps", "self.steps"])
def test_of_how_many_micro_batches_a_sum_is_may_not_be_known(count: str) -> None:
    right = SINCE_SHOWN.format(count=count)
    assert codes_in(right) == []


def test_where_it_is_known_how_often_a_sum_is_shown_it_is_told() -> None:
    shown = "print(running / (2 * K)); running = 0.0"
    assert is_flagged(each=ADD, inside=f"if updates % 2 == 0: {shown}")
    assert not is_flagged(each=ADD, inside=f"state.updates += 1\n                if state.updates % 2 == 0: {shown}")


def test_a_setting_that_says_whether_a_sum_is_shown_is_one_answer_for_all_turns() -> None:
    assert is_flagged(each=ADD, end="if verbose and model is not None: print(running / len(loader))")


METER = """\
import logging
import torch
from some_utils import AverageMeter, mixed

def train(model, loader, optimizer, criterion, K, mix):
    meter, own = AverageMeter(), AverageMeter()
    for i, (x, y) in enumerate(loader):
        if mix is not None:
            x, y = mixed(x, y)
        loss = criterion(model(x), y) / K
        loss.backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
        {keep}
        logging.info(f"{{meter.{shown}:.3f}}")
"""


@pytest.mark.parametrize(
    ("keep", "shown", "expected"),
    [
        ("meter.update(loss.item(), y.size(0))", "avg", True),
        ("meter.update(loss.item())", "avg", True),
        # A library's meter may keep the loss without its graph, or with it.
        ("meter.add(loss)", "avg", True),
        ("meter.update(loss.item() * K, y.size(0))", "avg", False),
        ("meter.update(loss.item(), y.size(0))", "count", False),
        ("meter.update(y.size(0)); own.update(loss.item())", "avg", False),
        ("meter.reset(); meter.update(loss.item())", "avg", False),
    ],
)
def test_meters_of_libraries_keep_means(keep: str, shown: str, expected: bool) -> None:
    found = codes_in(METER.format(keep=keep, shown=shown))
    assert ("GA802" in found) is expected
    assert set(found) <= {"GA301", "GA802"}


@pytest.mark.parametrize(
    ("keep", "text", "expected"),
    [
        ("meter.update(loss.item())", "'loss {m.avg:.3f}'.format(m=meter)", True),
        ("meter.update(loss.item())", "'loss {0.val:.3f} of {1}'.format(meter, i)", True),
        ("meter.update(loss.item())", "'{} {.avg}'.format(i, meter)", True),
        ("meter.update(loss.item())", "'loss {m.val:f} (mean {m.avg:f})'.format(m=meter)", True),
        ("meter.update(loss.item())", "'{} batches, {m.count}'.format(i, m=meter)", False),
        ("meter.update(loss.item() * K)", "'loss {m.avg:.3f}'.format(m=meter)", False),
        ("meter.update(loss.item())", "'{m.avg'.format(m=meter)", False),
    ],
)
def test_meters_that_a_text_is_formatted_with(keep: str, text: str, expected: bool) -> None:
    found = codes_in(METER.format(keep=keep, shown="name").replace('f"{meter.name:.3f}"', text))
    assert ("GA802" in found) is expected


@pytest.mark.parametrize(
    ("places", "flagged"),
    [
        # As a tensor it is the same number, with its graph and without.
        ({"each": "print(loss)"}, True),
        ({"each": "wandb.log({'loss': loss.detach()})"}, True),
        ({"each": "wandb.log({'loss': loss.detach().float().item()})"}, True),
        ({"early": "whole = loss.detach()", "each": "print(whole)"}, False),
        # What something was added to may be a sum over the window.
        ({"each": "running = running + loss.detach()", "inside": "print(running); running = 0.0"}, False),
        ({"each": "running = 0.0 + loss.detach(); print(running)"}, False),
    ],
)
def test_one_divided_loss_that_is_shown_as_a_tensor(places: dict[str, str], flagged: bool) -> None:
    assert is_flagged(**places) is flagged


KEEPER = """\
import torch
import torch.nn.functional as F

class Keeper:
    def __init__(self):
        self.kept = []

    def log(self, loss):
        {does}

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
keeper, K = Keeper(), 3
for i in range(18):
    x = torch.randn(4, 3)
    loss = F.mse_loss(net(x), x.sum(1, keepdim=True)) / K
    loss.backward()
    keeper.log(loss.item())
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
print(K * sum(keeper.kept) / 18)
"""


@pytest.mark.parametrize(("does", "expected"), [("self.kept.append(loss)", []), ("print(loss)", ["GA802"])])
def test_what_a_class_does_with_a_loss_that_it_is_given_shows_in_it(does: str, expected: list[str]) -> None:
    assert codes_in(filled(KEEPER, does=does)) == expected


OF_UNKNOWN_WEIGHT = """\
import torch
from elsewhere import batches, compute_loss, settings

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = batches(settings)
running = 0.0
for i, (x, t) in enumerate(loader):
    loss = compute_loss(net(x), t, {given})
    {early}
    loss = loss / settings.{divisor}
    running += loss.item()
    loss.backward()
    if (i + 1) % settings.accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()
        {inside}
    if (i + 1) % settings.every == 0:
        {shown}
        running = 0.0
"""


@pytest.mark.parametrize("given", ["make()", "settings.weights[i]", "settings.accumulation_steps"])
@pytest.mark.parametrize(
    ("places", "flagged"),
    [
        ({"inside": "print('loss', loss.item())"}, True),
        ({"shown": "print(running / settings.every)"}, True),
        ({"inside": "print('loss', loss.item() * settings.accumulation_steps)"}, False),
        ({"shown": "print(settings.accumulation_steps * running / settings.every)"}, False),
        ({"early": "print(loss.item())"}, False),
        # No number of K.
        ({"inside": "print('loss', loss.item())", "divisor": "temperature"}, False),
    ],
)
def test_a_loss_of_unknown_weight_that_was_divided_by_k(places: dict[str, str], flagged: bool, given: str) -> None:
    source = filled(OF_UNKNOWN_WEIGHT, **({"given": given, "divisor": "accumulation_steps"} | places))
    assert ("GA802" in codes_in(source)) is flagged


INTERVALS = {
    "if i % 100 == 99: print(running / i)": True,
    "if i % 100 == 0 and i > 0: print('loss', running / (i + 1))": True,
    "if (i + 1) % 100 == 0: print(running / 100); running = 0.0": True,
    "if (i + 1) % 200 == 0: logger.info(running / (i + 1))": True,
    "if (i + 1) % 100 == 0: logger.info('%f', meter.mean)": True,
    "if (i + 1) % 100 == 0: print(running / updates)": False,
    "if (i + 1) % 100 == 0: print('sum', running)": False,
}


@pytest.mark.parametrize(("report", "wrong"), INTERVALS.items(), ids=INTERVALS)
def test_what_is_reported_after_many_micro_batches_is_read_as_well(report: str, wrong: bool) -> None:
    kept = "running += loss.item(); meter.update(loss.item())"
    assert is_flagged(each=f"{kept}\n            {report}") is wrong
    assert not is_flagged(early=kept, each=report)
    undone = kept.replace(".item()", ".item() * K")
    if "updates" not in report and "sum" not in report:
        assert not is_flagged(each=f"{undone}\n            {report}")


OF_A_SHORT_WINDOW = """\
import torch

def train(model, loader, optimizer, criterion, K):
    for epoch in range(2):
        for i, (x, y) in enumerate(loader):
            raw = criterion(model(x), y)
            loss = raw / {divisor}
            loss.backward()
            if {boundary}:
                optimizer.step()
                optimizer.zero_grad()
            {each}
        {after}
"""


@pytest.mark.parametrize(
    ("places", "flagged"),
    [
        # What the last micro-batches of a pass are divided by is K, though they are no whole window.
        ({"after": "print('loss', loss.item())"}, True),
        ({"after": "print('epoch {}: {:.4f}'.format(epoch, loss))"}, True),
        ({"after": "print('loss', loss.item() * K)"}, False),
        ({"after": "print('loss', raw.item())"}, False),
        (
            {
                "after": "print('loss', loss.item())",
                "divisor": "min(K, len(loader) - i // K * K)",
                "boundary": "(i + 1) % K == 0 or i + 1 == len(loader)",
            },
            False,
        ),
        # The first window is one micro-batch, at 1/K, and is the only one that is shown.
        ({"each": "if i == 0: print(loss.item())", "boundary": "i % K == 0"}, True),
        ({"each": "if i == 0: print(raw.item())", "boundary": "i % K == 0"}, False),
    ],
)
def test_the_loss_of_a_short_window_that_was_divided_by_k(places: dict[str, str], flagged: bool) -> None:
    defaults = {"divisor": "K", "boundary": "(i + 1) % K == 0", "each": "pass", "after": "pass"}
    assert ("GA802" in codes_in(OF_A_SHORT_WINDOW.format(**(defaults | places)))) is flagged


OF_MIXED_WEIGHTS = """\
import torch
from elsewhere import settings
near, far = torch.nn.MSELoss(), torch.nn.L1Loss()

def train(model, loader, optimizer, K):
    for i, (x, y) in enumerate(loader):
        out = model(x)
        first, second = near(out, y), {second}
        raw = loss = settings.a * first + second
        {divide}
        loss.backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
        print(i, {shown})
"""


@pytest.mark.parametrize(
    ("places", "flagged"),
    [
        ({"divide": "loss = loss / K"}, True),
        ({"divide": "loss = loss / K", "shown": "loss.item() * K"}, False),
        ({"divide": "loss = loss / K", "shown": "raw.item()"}, False),
        # One of the terms was not divided, or was divided twice, or by what is no K.
        ({"second": "settings.b * near(out, y)", "divide": "loss = settings.a * first / K + second"}, False),
        ({"second": "far(out, y) * 1.0", "divide": "loss = settings.a * first / K + second"}, False),
        ({"second": "far(out, y) / K", "divide": "loss = (settings.a * first + second) / K"}, False),
        ({"divide": "loss = loss / settings.temperature"}, False),
    ],
)
def test_terms_of_known_and_of_unknown_weight_that_k_divides(places: dict[str, str], flagged: bool) -> None:
    defaults = {"second": "far(out, y)", "shown": "loss.item()"}
    assert ("GA802" in codes_in(OF_MIXED_WEIGHTS.format(**(defaults | places)))) is flagged


LEAKED = """\
import torch
K = 3
loader = [(torch.randn(4, 4), torch.randn(4, 3)) for _ in range(10)]
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        whole = torch.nn.functional.mse_loss(model(x), y)
        loss = whole / min(K, len(loader) - i // K * K)
        loss.backward()
        if (i + 1) % K == 0:
            optimizer.step()
        if (i + 1) % {turns} == 0:
            print({shown}.item())
"""


@pytest.mark.parametrize(
    ("turns", "shown", "flagged"),
    [(10, "whole", False), (10, "loss", False), (9, "loss", True), (9, "whole", False)],
)
def test_a_remainder_that_was_divided_by_its_own_number(turns: int, shown: str, flagged: bool) -> None:
    """The tenth loss is divided by 1, though it is in a full window with those of the next epoch."""
    codes = codes_in(LEAKED.format(turns=turns, shown=shown))
    assert "GA203" in codes and ("GA802" in codes) is flagged
