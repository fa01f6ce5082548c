"""Data that a script cuts itself: windows along a dimension that it was given, pieces cut alike, slices of them."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

HEAD = """\
import torch
from torch import nn
K = 4
x, y = torch.randn({rows}, 6), torch.randint(0, 3, ({rows},))
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
"""
STEP = "optimizer.step(); optimizer.zero_grad()"
WINDOWS = {
    "indices along a dimension": """
for epoch in range(2):
    for window in torch.randperm({rows}).view(-1, K, 5):
        for index in window:
            (criterion(model(x[index]), y[index]){scaling}).backward()
        {step}
""",
    "data along a dimension": """
for window in x[torch.randperm({rows})].view(-1, K, 5, 6):
    for part in window:
        (model(part).pow(2).mean(){scaling}).backward()
    {step}
""",
    "as many windows as are written": """
for window in torch.randperm({rows}).reshape(3, K, 5):
    for index in window:
        (criterion(model(x[index]), y[index]){scaling}).backward()
    {step}
""",
    "indices some at a time": """
for epoch in range(2):
    for i, index in enumerate(torch.randperm({rows}).view(-1, 5)):
        (criterion(model(x[index]), y[index]){scaling}).backward()
        if i % K == K - 1:
            {step}
""",
    "slices of pieces": """
pieces = torch.arange({rows}).split(5)
for first in range(0, len(pieces), K):
    for index in pieces[first:first + K]:
        (criterion(model(x[index]), y[index]){scaling}).backward()
    {step}
""",
    "pieces that are cut alike": """
batches = list(zip(x.split(5), (y + 0).split(5)))
for i, (a, b) in enumerate(batches):
    (criterion(model(a), b){scaling}).backward()
    if (i + 1) % K == 0:
        {step}
""",
}
every_way = pytest.mark.parametrize("loop", WINDOWS.values(), ids=list(WINDOWS))


def codes(loop: str, scaling: str, rows: int = 60) -> list[str]:
    source = HEAD.format(rows=rows) + loop.format(rows=rows, scaling=scaling, step=STEP)
    return codes_in(source)


@every_way
def test_windows_that_are_cut_by_hand_are_as_long_as_they_are_cut(loop: str) -> None:
    # 60 rows are 12 micro-batches of 5, three windows of 4.
    assert codes(loop, " / K") == []
    assert codes(loop, "") == ["GA101"]
    assert codes(loop, " / K / K") == ["GA102"]


def test_indices_of_a_data_set_whose_length_is_not_shown_may_leave_a_remainder() -> None:
    unknown = WINDOWS["indices some at a time"].replace("randperm({rows})", "randperm(len(given))")
    loop = "import sys\ngiven = torch.load(sys.argv[1])\n" + unknown
    assert codes(loop, " / K") == ["GA301"]
    assert codes(loop, "") == ["GA101", "GA301"]
    # 65 places are 13 micro-batches, the last of which reaches no step of its own.
    assert codes(WINDOWS["indices some at a time"], " / K", rows=65) == ["GA301"]
    assert codes(WINDOWS["indices some at a time"], " / K", rows=40) == []


def test_what_is_left_of_pieces_that_are_cut_alike_is_known() -> None:
    (found,) = lint_source(
        HEAD.format(rows=65)
        + WINDOWS["pieces that are cut alike"].format(rows=65, scaling=" / K", step=STEP).replace("(y + 0)", "y"),
        "train.py",
    )
    assert found.mistake.code == "GA301"
    assert found.message.startswith("1 micro-batch at the end of an epoch never reaches a step")


@pytest.mark.parametrize(
    "made", ["torch.sigmoid(torch.randn(n, 4) * 2)", "torch.randn(n, 4).tanh()", "torch.exp(torch.rand(n, 4))"]
)
@pytest.mark.parametrize(("rows", "codes"), [(60, []), (65, ["GA301"])])
def test_a_function_of_data_keeps_its_rows(made: str, rows: int, codes: list[str]) -> None:
    source = f"""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Made(Dataset):
    def __init__(self, n={rows}):
        self.x = {made}
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i]
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for i, x in enumerate(DataLoader(Made(), batch_size=5, shuffle=True)):
        (net(x).pow(2).mean() / 3).backward()
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    assert codes_in(source) == codes


def test_data_that_weighs_what_is_yet_to_be_reduced_is_no_factor_of_the_loss() -> None:
    source = """
import torch
def train(model, loader, optimizer, K):
    for i, (x, teacher) in enumerate(loader):
        share = torch.softmax(torch.tensor(teacher), dim=-1)
        loss = (share * (torch.log(share) - torch.log_softmax(model(x), dim=-1))).sum(-1).mean()
        loss.backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.zero_grad()
"""
    assert codes_in(source) == ["GA101", "GA301"]


PIECES = """\
import torch
from torch import nn
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(34, 4)
for epoch in range(3):
    for window in data.split(17):
        for piece in {pieces}:
            loss = (model(piece){share}).sum() / {count}
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("pieces", ["window.split(5)", "window.tensor_split(4)", "torch.split(window, 5)"])
@pytest.mark.parametrize("share", ["", " * 0.7", " * ((epoch % 3 + 1) / 3)"])
def test_a_piece_of_unknown_size_is_not_as_large_as_what_it_was_cut_out_of(pieces: str, share: str) -> None:
    def found(count: str) -> list[str]:
        text = PIECES.format(pieces=pieces, share=share, count=count)
        return [f.mistake.code for f in lint_source(text, "train.py") if f.mistake.code in ("GA101", "GA102")]

    assert found("len(window)") == []
    assert found("window.size(0)") == []
    if "epoch" not in share:
        assert found("len(piece)") == ["GA101"]


SPLIT_AGAIN = """\
import torch
from torch import nn
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(40, 4){data}
target = torch.randint(0, 2, (40,))
for epoch in range(3):
    for rows, classes in zip(data.split(18), target.split(18)):
        optimizer.zero_grad()
        for x, t in zip(rows.split(6), classes.split(6)):
            loss = nn.functional.cross_entropy(model(x), t, reduction="sum") / {count}
            loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("data", ["", "[torch.arange(10, 50) % 40]"])
def test_a_piece_that_is_split_again_is_a_window(data: str) -> None:
    def found(count: str) -> list[str]:
        text = SPLIT_AGAIN.format(data=data, count=count)
        return [f.mistake.code for f in lint_source(text, "train.py") if f.mistake.code in ("GA101", "GA102")]

    assert found("len(classes)") == []
    assert found("rows.shape[0]") == []
    assert found("len(t)") == ["GA101"]


SIZES = """\
import torch
from torch.utils.data import DataLoader, Dataset

class Windows(Dataset):
    def __init__(self, series, look, ahead):
        self.series, self.look, self.ahead = series, look, ahead

    def __len__(self):
        return len(self.series) - self.look - self.ahead + 1

    def __getitem__(self, i):
        return self.series[i:i + self.look], self.series[i + self.look:i + self.look + self.ahead]

def train(model, optimizer):
    dataset = Windows({series}, 10, 2)
    micro = 0
    for epoch in range(2):
        for x, y in DataLoader(dataset, batch_size=4):
            (torch.nn.functional.huber_loss(model(x), y) / 4).backward()
            micro += 1
            if micro == 4:
                optimizer.step()
                optimizer.zero_grad()
                micro = 0
"""


@pytest.mark.parametrize(
    ("series", "codes"),
    [
        ("torch.sin(torch.arange(75) * 0.3) + 0.1 * torch.randn(75)", []),
        ("torch.randn(75, 3) @ torch.randn(3, 5)", []),
        ("torch.rand(75, 6).sum(dim=1)", []),
        ("torch.sin(torch.arange(71) * 0.3)", ["GA301"]),
        # Of one row and of many: how many there are is not read from the first, and unknown is not seven.
        ("torch.rand(1, 75) + torch.rand(75, 1)", []),
    ],
)
def test_a_data_set_has_as_many_rows_as_its_series(series: str, codes: list[str]) -> None:
    source = SIZES.format(series=series)
    assert codes_in(source) == codes


def test_parts_of_which_only_some_show_their_size_are_not_unequal() -> None:
    source = """\
import torch
from torch import nn
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
left, right = torch.randn(2, 48, 6)
for start in range(0, 48, 12):
    for turn in range(3):
        first = start + turn * 4
        loss = (model(left[first:first + 4]) - model(right[first:first + 4])).mean() / 3
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    assert codes_in(source) == []


MADE = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

class Rows(Dataset):
    def __init__(self, n):
        self.rows = {made}
    def __len__(self): return self.rows.shape[0]
    def __getitem__(self, i): return self.rows[i]

class Balanced(Sampler):
    def __init__(self, batches): self.batches = batches
    def __len__(self): return self.batches
    def __iter__(self):
        for _ in range(self.batches): yield torch.randint(0, 9, (4,)).tolist()

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Rows({rows}), {batches})
for epoch in range(3):
    for i, x in enumerate(loader):
        (model(x).mean() / 5).backward()
        if (i + 1) % 5 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "made", ["torch.poisson(torch.rand(n, 3))", "torch.bernoulli(torch.rand(n, 3))", "torch.full((n, 3), 0.7)"]
)
@pytest.mark.parametrize(("rows", "found"), [(100, set()), (104, {"GA301"})])
def test_the_rows_of_data_that_is_drawn_element_by_element(made: str, rows: int, found: set[str]) -> None:
    source = MADE.format(made=made, rows=rows, batches="batch_size=4")
    assert set(codes_in(source)) == found


@pytest.mark.parametrize(("batches", "found"), [(10, set()), (11, {"GA301"})])
def test_a_sampler_of_batches_says_how_many_there_are(batches: int, found: set[str]) -> None:
    source = MADE.format(made="torch.rand(n, 3)", rows=99, batches=f"batch_sampler=Balanced({batches})")
    assert set(codes_in(source)) == found
