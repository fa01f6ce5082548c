"""What multiplies a loss and is the objective's: weights of rows, sizes, coefficients; and what skips no loss."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in, filled

ROWS = """\
import torch

class Trainer:
    def __init__(self, model, diffusion, optimizer, draws, piece):
        self.model, self.diffusion, self.optimizer = model, diffusion, optimizer
        self.draws, self.piece = draws, piece

    def train(self, loader):
        for batch in loader:
            self.optimizer.zero_grad()
            for i in range(0, batch.shape[0], self.piece):
                rows = batch[i : i + self.piece]
                t, weights = self.draws.sample(rows.shape[0], batch.device)
                losses = self.diffusion.losses_of(self.model, rows, t)
                loss = {loss}
                loss.backward()
            self.optimizer.step()
"""


@pytest.mark.parametrize(
    ("loss", "flagged"),
    [
        ('(losses["loss"] * weights).mean()', True),
        ('losses["loss"].mean()', True),
        # Scaled by its share of the batch.
        ('(losses["loss"] * weights).mean() * len(rows) / len(batch)', False),
        ('(losses["loss"] * weights).sum() / len(batch)', False),
        # Nothing shows that it was one loss for each row.
        ('losses["loss"] * weights', False),
        ('(losses["loss"] / weights).mean()', False),
    ],
)
def test_weights_of_rows_are_the_objectives_where_it_is_reduced_afterwards(loss: str, flagged: bool) -> None:
    assert ("GA101" in codes_in(filled(ROWS, loss=loss))) is flagged


FACTOR = """\
import torch

def train(model, optimizer, loader, K, args):
    for i, batch in enumerate(loader):
        loss = model(batch, compute_loss=True).mean() * {factor}
        {backward}
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("factor", "flagged"),
    [
        ('batch["targets"].size(1)', True),
        ('batch["targets"].shape[1]', True),
        # May be 1/K.
        ("args.coefficient", False),
        ("args.loss_scale", False),
        ("args.share(batch)", False),
    ],
)
def test_a_size_divides_nothing(factor: str, flagged: bool) -> None:
    assert ("GA101" in codes_in(filled(FACTOR, factor=factor, backward="loss.backward()"))) is flagged
    assert "GA101" not in codes_in(filled(FACTOR, factor=factor, backward="(loss / K).backward()"))


WEIGHED = """\
import argparse
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--alpha", type=float)
options = parser.parse_args()

def train(model, optimizer, loader, K, args):
    for i, (x, y) in enumerate(loader):
        near, far = F.mse_loss(model(x), y), F.l1_loss(model(x), y)
        loss = {loss}
        {backward}
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("loss", "flagged"),
    [
        ("args.near * near + args.far * far", True),
        ("options.alpha * near + args.beta * far", True),
        ("args.outer * (args.near * near + far)", False),
        # One setting of all terms may be 1/K, and so may one that is called a scale.
        ("args.alpha * near + args.alpha * far", False),
        ("args.near_scale * near + args.far_scale * far", False),
        ("share(x) * near + share(y) * far", False),
    ],
)
def test_settings_of_some_terms_are_their_relative_weights(loss: str, flagged: bool) -> None:
    assert ("GA101" in codes_in(filled(WEIGHED, loss=loss, backward="loss.backward()"))) is flagged
    assert "GA101" not in codes_in(filled(WEIGHED, loss=loss, backward="(loss / K).backward()"))


def test_a_word_that_is_given_to_a_model_divides_nothing() -> None:
    loop = filled(FACTOR, factor="1.0", backward="loss.backward()")
    word = loop.replace("compute_loss=True", "task=batch['name'].split('_')[0]")
    other = loop.replace("compute_loss=True", "task=args.table[i]")
    assert "GA101" in codes_in(word.replace("batch['name']", "args.name"))
    assert "GA101" not in codes_in(other)


EMPTY = """\
import torch
import torch.nn.functional as F

def loss_of(model, x, y):
    out = model(x)
    if not (y >= 0).any():
        {empty}
    return F.mse_loss(out, y)

def train(model, optimizer, loader, K):
    count = 0
    for x, y in loader:
        count += 1
        loss = loss_of(model, x, y)
        if loss is None:
            continue
        (loss / K).backward()
        if count % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(("empty", "flagged"), [("return None", True), ("return out.sum() * 0.0", False)])
def test_what_a_function_gives_in_place_of_a_loss_skips_nothing(empty: str, flagged: bool) -> None:
    assert ("GA303" in codes_in(filled(EMPTY, empty=empty))) is flagged


UNSEEN = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

def train(model, optimizer, loader, K, rank):
    model = DDP(model, device_ids=[rank])
    for i, batch in enumerate(loader):
        loss = {loss}
        (loss / K).backward()
        if (i + 1) % K == 0:
            torch.nn.utils.clip_grad_norm_(model.module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("loss", "flagged"),
    [
        ('model.module.losses_of(batch)["total"]', True),
        ("model.module.head(model.module.trunk(batch)).mean()", True),
        ("model.module.loss_of(model(batch), batch)", False),
        ('model(batch)["total"]', False),
    ],
)
def test_a_method_of_what_is_wrapped_runs_unseen(loss: str, flagged: bool) -> None:
    assert ("GA702" in codes_in(filled(UNSEEN, loss=loss))) is flagged


FOREVER = """\
import random
import torch
from torch.utils.data import DataLoader, IterableDataset

class Shards(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return 1000

    def forever(self):
        {goes_on}
            yield torch.load(random.choice(self.files))

    def __iter__(self):
        {gives}

def train(model, optimizer, criterion, files, K):
    loader = DataLoader(Shards(files), batch_size=4)
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize("gives", ["return iter(self.forever())", "return self.forever()", "yield from self.forever()"])
def test_a_loader_of_a_data_set_without_an_end_has_no_remainder(gives: str) -> None:
    assert codes_in(filled(FOREVER, goes_on="while True:", gives=gives)) == []
    assert "GA301" in codes_in(filled(FOREVER, goes_on="for _ in self.files:", gives=gives))


SCHEDULE = """\
import torch
from torch.optim.lr_scheduler import LambdaLR

class Ramp(LambdaLR):
    def __init__(self, optimizer, warmup, total_steps):
        self.warmup, self.total_steps = warmup, total_steps
        super().__init__(optimizer, self.rate)

    def rate(self, step):
        return min(step / self.warmup, (self.total_steps - step) / self.total_steps)

def train(model, loader, criterion, K, epochs):
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = Ramp(optimizer, 100, {length})
    step = 0
    for epoch in range(epochs):
        for x, y in loader:
            (criterion(model(x), y) / K).backward()
            step += 1
            if step % K == 0:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
"""


@pytest.mark.parametrize(
    ("length", "flagged"),
    [("len(loader) * epochs", True), ("total_steps=len(loader) * epochs", True), ("len(loader) * epochs // K", False)],
)
def test_a_schedule_of_the_projects_own_says_for_how_many_moves_it_is_made(length: str, flagged: bool) -> None:
    assert ("GA603" in codes_in(filled(SCHEDULE, length=length))) is flagged


POWERS = """\
import torch
import torch.nn.functional as F

def focal(scores, wanted, gamma=1.5):
    each = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
    return {loss}

def train(net, loader, optimizer):
    assert len(loader) % 4 == 0
    for i, (x, y) in enumerate(loader):
        (focal(net(x), y){by}).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("loss", "by", "codes"),
    [
        ("((1 - (-each).exp()) ** gamma * each).mean()", " / 4", []),
        ("((1 - (-each).exp()) ** gamma * each).mean()", "", ["GA101"]),
        # A power of what has been reduced is no mean of anything.
        ("each.mean() ** gamma", "", []),
        # What it was divided by before is not what divides its power.
        ("((each / 4) ** gamma).mean()", "", []),
    ],
)
def test_a_power_of_each_rows_loss_is_reduced_as_they_are(loss: str, by: str, codes: list[str]) -> None:
    assert codes_in(filled(POWERS, loss=loss, by=by)) == codes
