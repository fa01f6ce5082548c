"""What the factors of a loss are read as, where numbers alone mislead: counts, penalties, K that is named or not.

Weights are those of float64 arithmetic by hand: m equal micro-batches, each divided by d, are m/d of the large batch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from loops_with_places import codes_in
from watching import watch_source

from gradcheck_accum.lint import lint_source
from gradcheck_accum.results.verdict import Verdict, VerifyResult

HEAD = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
weights = [p for p in model.parameters() if p.dim() > 1]
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
X, T, Y = torch.randn(35, 6), torch.randn(35, 3), torch.randint(0, 3, (35,))
loader = {loader}
K = 4
for epoch in range(3):
    count = 0
    for i, (x, t, y) in enumerate(loader):
        out = model(x)
        mse, ce, huber = F.mse_loss(out, t), F.cross_entropy(out, y), F.smooth_l1_loss(out, t)
        ({loss}).backward()
        count += 1
        if {boundary}:
            {scaling}
            optimizer.step()
            optimizer.zero_grad()
            count = 0
"""
LOADERS = {
    "a list": "list(zip(X.split(5), T.split(5), Y.split(5)))",
    "a loader": "torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, T, Y), batch_size=5)",
}
FLUSHED = "(i + 1) % K == 0 or i + 1 == len(loader)"
BY_THEIR_NUMBER = "[p.grad.div_(count) for p in model.parameters()]"


def judged(source: str, folder: Path) -> tuple[VerifyResult, list[str], list[str]]:
    """verify's result and codes, and lint's codes."""
    result = watch_source(source, folder, reference="ledger")
    found = codes_in(source)
    return result, [d.mistake.code for d in result.diagnosis], found


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    "loss", ["mse / 3", "(mse + ce + huber) / 3", "mse + 0.001 * sum(w.pow(2).sum() for w in weights)"]
)
def test_gradients_that_are_divided_by_their_windows_number(loss: str, loader: str, tmp_path: Path) -> None:
    """Windows of 4 and 3 micro-batches; what the objective divides by is no K, nor is its penalty's coefficient."""
    source = HEAD.format(loader=LOADERS[loader], loss=loss, boundary=FLUSHED, scaling=BY_THEIR_NUMBER)
    result, codes, found = judged(source, tmp_path)
    assert (result.verdict, codes, found) == (Verdict.EQUIVALENT, [], []), result.reason
    assert [w.micro_batches for w in result.windows] == [4, 3] * 3


@pytest.mark.parametrize("loader", LOADERS)
def test_the_mean_of_three_losses_that_nothing_else_divides(loader: str, tmp_path: Path) -> None:
    source = HEAD.format(loader=LOADERS[loader], loss="(mse + ce + huber) / 3", boundary=FLUSHED, scaling="pass")
    result, codes, found = judged(source, tmp_path)
    assert (result.verdict, codes, found) == (Verdict.DEVIATES, ["GA101"], ["GA101"])
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([4, 3] * 3, rel=1e-5)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_step_at_every_micro_batch_once_the_first_window_is_full(loader: str, tmp_path: Path) -> None:
    source = HEAD.format(loader=LOADERS[loader], loss="mse / K", boundary="i + 1 >= K", scaling="pass")
    result, codes, found = judged(source, tmp_path)
    assert (result.verdict, codes, found) == (Verdict.DEVIATES, ["GA304"], ["GA304"])
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([1, 1 / 4, 1 / 4, 1 / 4] * 3, rel=1e-5)
    assert result.diagnosis[0].help == "step only when the window is complete"


COUNTED = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
sizes = {sizes}
data = [(torch.randn(n, 6), torch.randint(0, 3, (n,))) for n in sizes]
W = torch.tensor([0.5, 1.25, 2.0])
for s in range(0, len(data), 2):
    n = {counted}
    for x, y in data[s:s + 2]:
        loss = {loss}
        (loss / n).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SUM = 'F.cross_entropy(model(x), y, reduction="sum")'
EACH = 'F.cross_entropy(model(x), y, reduction="none")'
IN_THREE = "[23, 30, 30, 23, 11, 13]"


@pytest.mark.parametrize(
    ("sizes", "counted", "units", "numbers"),
    [
        (IN_THREE, "59 if s < 4 else 26", "53, 53, 24", "59, 59, 26"),
        # The tokens of four batches, of which a step holds two.
        (
            "[23, 30, 31, 22, 11, 13, 17, 9]",
            "sum(len(y) for _, y in data[s // 4 * 4:s // 4 * 4 + 4])",
            "53, 53, 24, 26",
            "106, 106, 50, 50",
        ),
    ],
)
def test_a_divisor_that_is_neither_constant_nor_the_windows_units_is_not_judged(
    sizes: str, counted: str, units: str, numbers: str, tmp_path: Path
) -> None:
    result = watch_source(COUNTED.format(sizes=sizes, counted=counted, loss=SUM), tmp_path, reference="ledger")
    assert result.verdict is Verdict.INCONCLUSIVE
    assert any(f"windows of {units} units and divided by {numbers}:" in note for note in result.notes)


@pytest.mark.parametrize(
    ("counted", "loss", "noted"),
    [
        ("sum(len(y) for _, y in data[s:s + 2])", SUM, False),
        ("3 * sum(len(y) for _, y in data[s:s + 2])", SUM, False),
        ("50", SUM, False),
        ("sum(int((y > 0).sum()) for _, y in data[s:s + 2])", f"({EACH} * (y > 0)).sum()", False),
        ("sum(float(W[y].sum()) for _, y in data[s:s + 2])", f"({EACH} * W[y]).sum()", True),
    ],
)
def test_counts_coefficients_masks_and_weights_of_a_sum(counted: str, loss: str, noted: bool, tmp_path: Path) -> None:
    result = watch_source(COUNTED.format(sizes=IN_THREE, counted=counted, loss=loss), tmp_path, reference="ledger")
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert any("divided by" in note for note in result.notes) is noted


def test_a_count_that_is_multiplied_by_k_is_not_judged(tmp_path: Path) -> None:
    """Two micro-batches in each window, and twice its units: a coefficient of 1/2, or K once too often."""
    twice = COUNTED.format(sizes=IN_THREE, counted="2 * sum(len(y) for _, y in data[s:s + 2])", loss=SUM)
    result = watch_source(twice, tmp_path, reference="ledger")
    assert result.verdict is Verdict.INCONCLUSIVE
    assert any("whether this counts something" in note.lower() for note in result.notes)


DIVIDED_TWICE = """
import torch
from torch import nn
def train(model, loader, optimizer):
    criterion = nn.CrossEntropyLoss()
    K = {steps}
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / K / {again}
        loss.backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize("steps", [5, 7, 11])
@pytest.mark.parametrize(
    ("again", "said"),
    [
        ("K", "(1/{steps}: divided by the accumulation steps a second time)"),
        (
            "x.size(0)",
            "weighted only 1/(batch size) relative to the large batch (also divided by the batch size)",
        ),
        ("K / len(x)", "weighted only 1/(batch size x {steps}) relative to the large batch"),
    ],
)
def test_lint_states_no_size_of_a_batch_that_the_source_does_not_show(again: str, said: str, steps: int) -> None:
    findings = lint_source(DIVIDED_TWICE.format(steps=steps, again=again), "train.py")
    message = next(f.message for f in findings if f.mistake.code == "GA102")
    assert said.format(steps=steps) in message


ONE_BY_ONE = """
import torch
from torch.nn import functional as F
def train(model, loader, optimizer, args):
    {setup}
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y) / {divisor}
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if {test}:
            print(i)
"""


@pytest.mark.parametrize(
    ("setup", "divisor", "test", "codes"),
    [
        ("accum_steps = 4", "accum_steps", "i == 0", ["GA304"]),
        # What a log goes by decides on nothing, whatever else has the same number.
        ("every = 4", "every", "(i + 1) % every == 0", []),
        ("every = 4\n    scale = every", "scale", "(i + 1) % every == 0", []),
        ("pass", "args.every", "(i + 1) % args.every == 0", []),
        ("heads = 4", "heads", "(i + 1) % 4 == 0", []),
        ("log, heads = 4, 4", "heads", "(i + 1) % log == 0", []),
        ("pass", "4", "(i + 1) % args.log_every == 0", []),
        ("warmup = 8", "(warmup / (i + 1))", "i % 8 == 0", []),
    ],
)
def test_in_a_source_k_is_the_same_binding_or_a_name_of_it(
    setup: str, divisor: str, test: str, codes: list[str]
) -> None:
    source = ONE_BY_ONE.format(setup=setup, divisor=divisor, test=test)
    findings = lint_source(source, "train.py")
    assert [f.mistake.code for f in findings] == codes
    assert not any("--loss-coefficient" in f.help for f in findings)


PLAIN = """
import torch
from torch.nn import functional as F
torch.manual_seed(0)
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
X, T = torch.randn(35, 6), torch.randn(35, 3)
settings = {{"{name}": 3}}
{name} = 3
def scaled(loss, divisor):
    return loss / divisor
for x, t in zip(X.split(5), T.split(5)):
    loss = F.mse_loss(model(x), t)
    {scaled}
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WAYS = [
    "loss = loss / {name}",
    "loss /= {name}",
    "loss = loss * (1 / {name})",
    "loss = loss.div({name})",
    "loss = 0.7 * torch.div(loss, {name})",
    'loss = loss / settings["{name}"]',
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "codes"), [("accumulation_steps", ["GA304"]), ("ACCUM_STEPS", ["GA304"]), ("heads", [])]
)
def test_a_run_reads_the_name_of_k_where_it_divides(way: str, name: str, codes: list[str], tmp_path: Path) -> None:
    result = watch_source(PLAIN.format(name=name, scaled=way.format(name=name)), tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT)
    if codes:
        assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([1 / 3] * 7, rel=1e-5)


def test_what_the_caller_states_is_no_guess(tmp_path: Path) -> None:
    source = PLAIN.format(name="heads", scaled="loss = loss / heads")
    result = watch_source(source, tmp_path, loss_coefficient=1.0, reference="ledger")
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, ["GA304"])
    unstated = watch_source(source, tmp_path, reference="ledger")
    assert any("by 3 was read as part of the objective" in note for note in unstated.notes)


def test_a_name_of_k_that_a_function_is_given(tmp_path: Path) -> None:
    source = PLAIN.format(name="accumulation_steps", scaled="loss = scaled(loss, accumulation_steps)")
    assert [d.mistake.code for d in watch_source(source, tmp_path).diagnosis] == ["GA304"]


def test_a_remainder_that_leaks_from_a_list_makes_no_longer_k(tmp_path: Path) -> None:
    """Seven micro-batches a pass and K = 4: windows of 4, 3 + 4 and 3 + 4, with 3 left over."""
    source = HEAD.format(loader=LOADERS["a list"], loss="mse / K", boundary="(i + 1) % K == 0", scaling="pass")
    assert judged(source, tmp_path)[1] == ["GA301"]


SETTINGS = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(3)
HEADS = ["click", "cart", "buy"]
ACCUMULATE = 3
SHARE = 3
trunk = nn.Linear(6, 4)
heads = nn.ModuleDict({h: nn.Linear(4, 1) for h in HEADS})
model = nn.ModuleList([trunk, heads])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
X, T = torch.randn(24, 6), torch.randn(24, 3)
worth = torch.rand(12)
for i, (x, t) in enumerate(zip(X.split(4), T.split(4))):
    h = trunk(x)
    losses = [F.mse_loss(heads[name](h)[:, 0], t[:, n]) for n, name in enumerate(HEADS)]
    LOSS
    if i % ACCUMULATE == ACCUMULATE - 1:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("loss", "codes", "weight"),
    [
        # How many heads there are is no K, however many micro-batches a window has.
        ("(sum(losses) / len(HEADS)).backward()", ["GA101"], 3.0),
        ("(sum(losses) / len(HEADS) / ACCUMULATE).backward()", [], 1.0),
        # How long a tensor is, is the size of its batch: a mean has been divided by it.
        ("(losses[0] / (ACCUMULATE * x.size(0))).backward()", ["GA102"], 0.25),
        ("(losses[0] / (ACCUMULATE * len(x))).backward()", ["GA102"], 0.25),
        ("n = x.shape[0]; (losses[0] * n / (ACCUMULATE * n)).backward()", [], 1.0),
        ("(losses[0] / (ACCUMULATE * 0.7)).backward()", [], 1.0),
        # Who divides by K needs no other number for it, whatever is wrong besides.
        ("(losses[0] / SHARE / ACCUMULATE / ACCUMULATE).backward()", ["GA102"], 1 / 3),
        ("(losses[0] / SHARE / ACCUMULATE / len(x)).backward()", ["GA102"], 1 / 4),
        ("(losses[0] / SHARE / len(losses) / len(x)).backward()", ["GA102"], 1 / 4),
        # What each micro-batch is worth changes beside the division by K, and is no division.
        ("own = worth[i]; (own * losses[0] / ACCUMULATE).backward()", [], 1.0),
    ],
)
def test_where_a_number_comes_from_decides(loss: str, codes: list[str], weight: float, tmp_path: Path) -> None:
    result = watch_source(SETTINGS.replace("LOSS", loss), tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes, result.reason
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT), result.reason
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([weight, weight], rel=1e-5)


@pytest.mark.parametrize("name", ["K", "parts"])
@pytest.mark.parametrize(("divisor", "codes"), [("{k}", ["GA103"]), ("(len(data) % {k})", [])])
def test_a_run_of_the_flush_alone_is_a_remainder(name: str, divisor: str, codes: list[str], tmp_path: Path) -> None:
    """Two micro-batches of five, as a flush that asks for the remainder shows: 2/5 of the large batch's gradient."""
    source = f"""
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(2)
{name} = 5
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(3, 4), torch.randn(3, 3)) for _ in range(2)]
for i, (x, t) in enumerate(data):
    (F.mse_loss(model(x), t) / DIVISOR).backward()
    if (i + 1) % STEPS == 0:
        optimizer.step()
        optimizer.zero_grad()
if len(data) % STEPS:
    optimizer.step()
    optimizer.zero_grad()
"""
    for steps in (name, "5"):
        own = source.replace("STEPS", steps).replace("DIVISOR", divisor.format(k=steps))
        result = watch_source(own, tmp_path)
        assert [d.mistake.code for d in result.diagnosis] == codes, result.reason
        assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([0.4 if codes else 1.0], rel=1e-5)


TURNS = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(4)
body, head_a, head_b = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 1)
optimizer = torch.optim.SGD([*body.parameters(), *head_a.parameters(), *head_b.parameters()], lr=0.1)
data = [(torch.randn(3, 4), torch.randint(0, 3, (3,)), torch.randn(3)) for _ in range(12)]
WINDOW = 4
for first in range(0, len(data), WINDOW):
    for i, (x, labels, values) in enumerate(data[first : first + WINDOW]):
        hidden = torch.tanh(body(x))
        if i % 2:
            loss = F.cross_entropy(head_a(hidden), labels)
        else:
            loss = F.smooth_l1_loss(head_b(hidden).squeeze(-1), values)
        (loss / DIVISOR).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("divisor", "coefficient", "verdict"),
    [
        # The mean over all four losses of a window, or half of each loss's mean: nobody can tell.
        ("WINDOW", None, Verdict.INCONCLUSIVE),
        ("WINDOW", 0.5, Verdict.EQUIVALENT),
        ("WINDOW", 1.0, Verdict.DEVIATES),
        ("1", None, Verdict.DEVIATES),
    ],
)
def test_losses_that_take_turns_in_a_window(
    divisor: str, coefficient: float | None, verdict: Verdict, tmp_path: Path
) -> None:
    result = watch_source(TURNS.replace("DIVISOR", divisor), tmp_path, loss_coefficient=coefficient)
    assert result.verdict is verdict, result.reason
    if verdict is not Verdict.DEVIATES:
        assert not result.diagnosis


ROWS_THAT_REMAIN = """
import torch
from torch import nn
torch.manual_seed(3)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
X, Y = torch.randn(48, 4), torch.randn(48, 1)
for step, i in enumerate(range(0, len(X), 4)):
    n = min(4, len(X) - i)
    loss = nn.functional.mse_loss(model(X[i:i + n]), Y[i:i + n], reduction="{reduction}") / n / {k}
    loss.backward()
    if (step + 1) % {k} == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("k", [3, 4])
def test_a_minimum_with_the_rows_that_remain_counts_rows(k: int, tmp_path: Path) -> None:
    """Four rows each: it makes a mean of their sum, and divides their mean a second time."""
    right, *codes = judged(ROWS_THAT_REMAIN.format(reduction="sum", k=k), tmp_path)
    assert (right.verdict, codes) == (Verdict.EQUIVALENT, [[], []])
    again, *codes = judged(ROWS_THAT_REMAIN.format(reduction="mean", k=k), tmp_path)
    assert (again.verdict, codes) == (Verdict.DEVIATES, [["GA102"], ["GA102"]])
    assert [w for window in again.windows for w in window.weights] == pytest.approx([1 / 4] * (12 // k * k))


LITERALS = """
import torch
from torch import nn
torch.manual_seed(3)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
count = 0
for _ in range(6):
    x, y = torch.randn(2, 4), torch.randint(0, 3, (2,))
    loss = nn.functional.cross_entropy(model(x), y) / {divisors}
    loss.backward()
    count += 1
    if count > 2:
        optimizer.step()
        optimizer.zero_grad()
        count = 0
"""


@pytest.mark.parametrize(("divisors", "codes"), [("2", ["GA302"]), ("3", []), ("2 / 3", []), ("3 / 2", [])], ids=str)
def test_a_literal_that_windows_exceed_is_k_if_they_are_not_scaled_in_full(
    divisors: str, codes: list[str], tmp_path: Path
) -> None:
    """Three micro-batches of two rows each; by 2 and 3, the 2 is the objective's."""
    result, *found = judged(LITERALS.format(divisors=divisors), tmp_path)
    assert (result.verdict, found) == (Verdict.DEVIATES if codes else Verdict.EQUIVALENT, [codes, codes])
    assert [w for window in result.windows for w in window.weights] == pytest.approx([3 / 2 if codes else 1] * 6)


SHOWN = """
import torch
from torch import nn
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(2, 4), torch.randint(0, 3, (2,))) for _ in range(6)]
{k}
running = 0.0
def scaled(loss, parts):
    return loss / parts
for i, (x, y) in enumerate(loader):
    raw = nn.functional.cross_entropy(model(x), y){constant}
    loss = scaled(raw, {n})
    loss.backward()
    running += {shown}.item()
    if (i + 1) % {n} == 0:
        optimizer.step()
        optimizer.zero_grad()
print(running / len(loader))
"""


@pytest.mark.parametrize(
    ("k", "n", "constant", "shown", "codes"),
    [
        ("", "3", " / 3", "raw", []),
        ("", "3", " / 3", "loss", []),
        ("", "3", "", "raw", []),
        ("K = 3", "K", " / 3", "raw", []),
        ("K = 3", "K", " / 3", "loss", ["GA802"]),
    ],
)
def test_which_of_two_equal_divisions_is_by_k_decides_what_was_shown(
    k: str, n: str, constant: str, shown: str, codes: list[str]
) -> None:
    """The mean of losses that are shown before the division by K, and after it, whatever divides them first."""
    assert codes_in(SHOWN.format(k=k, n=n, constant=constant, shown=shown)) == codes
