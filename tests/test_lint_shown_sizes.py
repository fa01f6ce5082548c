"""How many micro-batches there are, where the source shows it: in settings, samplers, shapes and lists of sizes."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import json
from dataclasses import dataclass, field
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

"""
LOOPS = labelled_loops("""\
## Settings in objects that are made of others.

#: right: fields that a class, a function and a default make
@dataclass
class Windows:
    every: int = 1

@dataclass
class Rows:
    total: int = 60
    each: int = field(default=5)

@dataclass
class Settings:
    rows: Rows = field(default_factory=Rows)
    windows: Windows = field(default_factory=lambda: Windows(every=4))

settings = Settings()
data = TensorDataset(torch.randn(settings.rows.total, 3), torch.randn(settings.rows.total, 1))
for i, (x, y) in enumerate(DataLoader(data, batch_size=settings.rows.each)):
    (F.mse_loss(model(x), y) / settings.windows.every).backward()
    if (i + 1) % settings.windows.every == 0:
        optimizer.step()
        optimizer.zero_grad()

#= GA301: as many rows as leave a remainder
-    total: int = 60
+    total: int = 65

#= GA102: divided by the number that the loader was given for its batches
-    (F.mse_loss(model(x), y) / settings.windows.every).backward()
+    (F.mse_loss(model(x), y) / settings.rows.each / settings.windows.every).backward()

#= right: a sum divided by that number
-    (F.mse_loss(model(x), y) / settings.windows.every).backward()
+    loss = F.mse_loss(model(x), y, reduction="sum") / settings.rows.each
+    (loss / settings.windows.every).backward()

#= right: a mean divided by a constant of another name that equals it
-    (F.mse_loss(model(x), y) / settings.windows.every).backward()
+    (F.mse_loss(model(x), y) / FOLDS / settings.windows.every).backward()

-settings = Settings()
+settings = Settings()
+FOLDS = 5

## Settings in a text.

#: right: settings in JSON
SETTINGS = json.loads('{"rows": 36, "train": {"size": 4, "windows": {"every": 3}}}')
every = SETTINGS["train"]["windows"]["every"]
data = TensorDataset(torch.randn(SETTINGS["rows"], 3), torch.randn(SETTINGS["rows"], 1))
shown = 0.0
for i, (x, y) in enumerate(DataLoader(data, batch_size=SETTINGS["train"]["size"])):
    loss = F.mse_loss(model(x), y)
    (loss / every).backward()
    shown += loss.item()
    if (i + 1) % every == 0:
        optimizer.step()
        optimizer.zero_grad()
        print(shown / every)
        shown = 0.0

#= GA301: settings in JSON that leave a remainder
-SETTINGS = json.loads('{"rows": 36, "train": {"size": 4, "windows": {"every": 3}}}')
+SETTINGS = json.loads('{"rows": 40, "train": {"size": 4, "windows": {"every": 3}}}')

#= GA802: settings in JSON, and a loss that is shown as it was divided
-    loss = F.mse_loss(model(x), y)
-    (loss / every).backward()
+    loss = F.mse_loss(model(x), y) / every
+    loss.backward()

#= right: settings in JSON by which each micro-batch is a window
-    loss = F.mse_loss(model(x), y)
-    (loss / every).backward()
+    loss = F.mse_loss(model(x), y) / every
+    loss.backward()

-SETTINGS = json.loads('{"rows": 36, "train": {"size": 4, "windows": {"every": 3}}}')
+SETTINGS = json.loads('{"rows": 36, "train": {"size": 4, "windows": {"every": 1}}}')

## Samplers of batches.

#: right: a sampler that makes the batches
data = TensorDataset(torch.randn(50, 3), torch.randn(50, 1))
sampler = BatchSampler(RandomSampler(data), batch_size=4, drop_last=True)
for i, (x, y) in enumerate(DataLoader(data, batch_sampler=sampler)):
    (F.mse_loss(model(x), y) / 4).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()

#= GA301: a sampler that makes the last batch as well
-sampler = BatchSampler(RandomSampler(data), batch_size=4, drop_last=True)
+sampler = BatchSampler(SequentialSampler(range(50)), 4, False)

#= right: a sampler that makes as many as fit
-sampler = BatchSampler(RandomSampler(data), batch_size=4, drop_last=True)
+sampler = BatchSampler(SequentialSampler(range(48)), 4, False)

## Samplers that draw another number of rows than there are.

#: right: as many as the weighted sampler is given
data = TensorDataset(torch.randn(510, 3), torch.randn(510, 1))
sampler = WeightedRandomSampler(torch.rand(510), num_samples=400, replacement=True)
for i, (x, y) in enumerate(DataLoader(data, batch_size=20, sampler=sampler)):
    (F.mse_loss(model(x), y) / 5).backward()
    if (i + 1) % 5 == 0:
        optimizer.step()
        optimizer.zero_grad()

#= GA301: a weighted sampler that is given one batch more
-sampler = WeightedRandomSampler(torch.rand(510), num_samples=400, replacement=True)
+sampler = WeightedRandomSampler(torch.rand(510), 410)

#= right: as many as the random sampler is given
-sampler = WeightedRandomSampler(torch.rand(510), num_samples=400, replacement=True)
+sampler = RandomSampler(data, num_samples=400)

#= GA301: a random sampler that is given one batch more
-sampler = WeightedRandomSampler(torch.rand(510), num_samples=400, replacement=True)
+sampler = RandomSampler(data, True, 410)

#= GA301: a random sampler that is given no number draws as many as there are
-sampler = WeightedRandomSampler(torch.rand(510), num_samples=400, replacement=True)
+sampler = RandomSampler(data, replacement=True)

#= GA301: no sampler, which is said
-sampler = WeightedRandomSampler(torch.rand(510), num_samples=400, replacement=True)
+sampler = None

#= right: rows that are listed
-sampler = WeightedRandomSampler(torch.rand(510), num_samples=400, replacement=True)
+sampler = SubsetRandomSampler(list(range(10, 410)))

#= right: rows that were drawn
-sampler = WeightedRandomSampler(torch.rand(510), num_samples=400, replacement=True)
+sampler = SubsetRandomSampler(torch.randperm(510)[:400])

#= GA301: rows of which one batch more is listed
-sampler = WeightedRandomSampler(torch.rand(510), num_samples=400, replacement=True)
+sampler = SubsetRandomSampler(list(range(410)))

## Data sets that yield their samples.

#: right: as many as the loop of a data set yields
class Noise(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        generator = torch.Generator().manual_seed(3)
        for _ in range(self.count):
            x = torch.randn(3, generator=generator)
            yield x, x.sum(0, keepdim=True)

loader = DataLoader(Noise(480), batch_size=15)
for i, (x, y) in enumerate(loader):
    (F.mse_loss(model(x), y) / 4).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()

#= GA301: one batch more
-loader = DataLoader(Noise(480), batch_size=15)
+loader = DataLoader(Noise(495), batch_size=15)

#= right: as many batches as a data set gives that makes batches itself
-loader = DataLoader(Noise(480), batch_size=15)
+loader = DataLoader(Noise(480), batch_size=None)

#= GA301: one less
-loader = DataLoader(Noise(480), batch_size=15)
+loader = DataLoader(Noise(479), batch_size=None)

#= right: what fills no batch is dropped
-loader = DataLoader(Noise(480), batch_size=15)
+loader = DataLoader(Noise(494), batch_size=15, drop_last=True)

#= right: pairs of each, in a loop of a number that was computed
-        for _ in range(self.count):
-            x = torch.randn(3, generator=generator)
-            yield x, x.sum(0, keepdim=True)
+        half = self.count // 2
+        for _ in range(half):
+            x = torch.randn(3, generator=generator)
+            for sign in range(2):
+                yield (2 * sign - 1) * x, x.sum(0, keepdim=True)

#= GA301: the same, with an odd number of batches
-        for _ in range(self.count):
-            x = torch.randn(3, generator=generator)
-            yield x, x.sum(0, keepdim=True)
+        half = self.count // 2
+        for _ in range(half - 15):
+            x = torch.randn(3, generator=generator)
+            for sign in range(2):
+                yield (2 * sign - 1) * x, x.sum(0, keepdim=True)

#= GA301: some samples are left out, and how many is not shown
-            x = torch.randn(3, generator=generator)
-            yield x, x.sum(0, keepdim=True)
+            x = torch.randn(3, generator=generator)
+            if x.sum() > 0:
+                yield x, x.sum(0, keepdim=True)

#= GA301: each process yields all of them, and how many there are is not shown
-loader = DataLoader(Noise(480), batch_size=15)
+loader = DataLoader(Noise(480), batch_size=15, num_workers=args.workers)

## Data cut into pieces.

#: right: pieces of given sizes, weighted by their rows
SIZES = [5, 3, 8, 4, 2, 6]
x, y = torch.randn(sum(SIZES), 3), torch.randn(sum(SIZES), 1)
seen = 0
for i, (rows, targets) in enumerate(zip(x.split(SIZES), y.split(SIZES)), 1):
    F.mse_loss(model(rows), targets, reduction="sum").backward()
    seen += len(rows)
    if i % 3 == 0:
        for p in model.parameters():
            p.grad /= seen
        optimizer.step()
        optimizer.zero_grad()
        seen = 0

#= GA301: pieces of given sizes, one too many
-SIZES = [5, 3, 8, 4, 2, 6]
+SIZES = [5, 3, 8, 4, 2, 6, 4]

#= GA104: pieces of given sizes, each with its own mean
-    F.mse_loss(model(rows), targets, reduction="sum").backward()
-    seen += len(rows)
+    (F.mse_loss(model(rows), targets) / 3).backward()

-        for p in model.parameters():
-            p.grad /= seen
-        optimizer.step()
+        optimizer.step()

#: right: as many pieces as are asked for
K = 4
data = TensorDataset(torch.randn(96, 3), torch.randn(96, 1))
for x, y in DataLoader(data, batch_size=48):
    for rows, targets in zip(x.tensor_split(K), y.tensor_split(K)):
        (F.mse_loss(model(rows), targets) / K).backward()
    optimizer.step()
    optimizer.zero_grad()

#= GA101: as many pieces as are asked for, and no division
-        (F.mse_loss(model(rows), targets) / K).backward()
+        F.mse_loss(model(rows), targets).backward()

#: right: pieces of a dictionary of data
data = {"x": torch.randn(36, 3), "y": torch.randn(36, 1)}
for i, start in enumerate(range(0, 36, 4), 1):
    batch = {name: values[start : start + 4] for name, values in data.items()}
    (F.mse_loss(model(batch["x"]), batch["y"]) / 3).backward()
    if i % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()

#= GA101: pieces of a dictionary of data, and no division
-    (F.mse_loss(model(batch["x"]), batch["y"]) / 3).backward()
+    F.mse_loss(model(batch["x"]), batch["y"]).backward()

## Data made of data.

#: right: data of which each row is multiplied by the same column
x = torch.rand(48, 3, 2) * torch.linspace(0, 1, 3)[:, None]
data = TensorDataset(x.flatten(1)[:, :3], torch.multinomial(torch.tensor([0.5, 0.5]), 48, replacement=True).float())
for i, (rows, targets) in enumerate(DataLoader(list(x), batch_size=4)):
    (F.mse_loss(model(rows), targets) / 4).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()

#= GA301: fewer rows of that kind
-x = torch.rand(48, 3, 2) * torch.linspace(0, 1, 3)[:, None]
+x = torch.rand(40, 3, 2) * torch.linspace(0, 1, 3)[:, None]

#: right: data made of what a function of PyTorch drew
labels = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), 80, replacement=True)
x = torch.randn(80, 3) + labels[:, None] * 0.3
for i, (rows, targets) in enumerate(DataLoader(TensorDataset(x, labels), batch_size=5)):
    (F.mse_loss(model(rows).squeeze(1), targets.float()) / 4).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()

#= GA301: data made of what a function of PyTorch drew, with a remainder
-x = torch.randn(80, 3) + labels[:, None] * 0.3
+x = torch.randn(75, 3) + labels[:, None] * 0.3

## Windows in a list.

#: right: a list of windows, which is a pass
batches = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(8)]
windows = [batches[i : i + 3] for i in range(0, len(batches), 3)]
for epoch in range(2):
    for window in windows:
        for x, y in window:
            (F.mse_loss(model(x), y) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()

#= GA103: a list of windows, the last of which is divided by too much
-            (F.mse_loss(model(x), y) / len(window)).backward()
+            (F.mse_loss(model(x), y) / 3).backward()

#: right: a list of batches, each a list of tensors
batches = [[torch.randn(4, 3), torch.randn(4, 1)] for _ in range(8)]
for i, batch in enumerate(batches):
    x, y = batch
    (F.mse_loss(model(x), y) / 2).backward()
    if (i + 1) % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_sizes_that_the_source_shows(loop: LabelledLoop) -> None:
    assert codes_in(HEAD + loop.source) == loop.codes


@pytest.mark.parametrize(("divisor", "is_off"), [("len(x)", False), ("(K + 1)", True)])
def test_as_many_rows_as_one_more_than_k_are_no_window_off_by_one(divisor: str, is_off: bool) -> None:
    loop = f"""\
K = 4
loader = DataLoader(TensorDataset(torch.randn(60, 3), torch.randn(60, 1)), batch_size=5)
for i, (x, y) in enumerate(loader):
    (F.mse_loss(model(x), y) / {divisor}).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
    assert ("GA302" in codes_in(HEAD + loop)) == is_off
