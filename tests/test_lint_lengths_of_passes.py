"""How long a pass is where lists grow by what is read, where training may stop early, and what comes after it."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

ROWS = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

def encoded(records):
    rows = []
    for {each} in {records}:
        rows.append(record.words)
    return rows

def main(path, model, args):
    optimizer = torch.optim.AdamW(model.parameters())
    rows = encoded({read})
    data = TensorDataset(torch.tensor([row for row in rows]), torch.tensor([row for row in rows]))
    loader = DataLoader(data, sampler=DistributedSampler(data), batch_size=2)
    for epoch in range(3):
        for step, (x, y) in enumerate(loader):
            (model(x, y) / args.gradient_accumulation_steps).backward()
            if (step + 1) % args.gradient_accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("each", "records"),
    [("record", "records"), ("n, record", "enumerate(records)"), ("record, _", "zip(records, y())")],
)
def test_what_is_made_of_what_was_read_has_a_length_from_outside(each: str, records: str) -> None:
    assert codes_in(ROWS.format(each=each, records=records, read="load(path)")) == ["GA301"]


def test_so_has_what_is_made_of_that_in_a_further_loop() -> None:
    twice = ROWS.format(each="n, record", records="enumerate(records)", read="encoded(load(path))")
    assert codes_in(twice) == ["GA301"]


def test_the_rows_of_a_list_that_is_written_are_determined() -> None:
    written = ROWS.format(each="record", records="records", read="[object(), object(), object(), object()]")
    assert codes_in(written) == []


EARLY = """\
import torch

class Coach:
    def __init__(self, model, options):
        self.model, self.options = model, options
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.best, self.worse = 0.0, 0

    def judge(self):
        score = measured(self.model)
        if score > self.best:
            self.best = score
            {better}
        else:
            self.worse += 1

    def one_pass(self, loader):
        for i, (x, y) in enumerate(loader):
            (self.model(x, y) / self.options.accumulation_steps).backward()
            if (i + 1) % self.options.accumulation_steps == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
                {judge}
                if self.worse >= self.options.patience:
                    return
"""


def test_early_stopping_says_nothing_of_how_long_training_is() -> None:
    assert codes_in(EARLY.format(better="self.worse = 0", judge="self.judge()")) == ["GA301"]


def test_a_count_of_steps_does() -> None:
    assert codes_in(EARLY.format(better="pass", judge="self.worse += 1")) == []


AFTER = """\
import torch

def main(model, loader, args, library):
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(3):
        {begin}
        for step, (x, y) in enumerate(loader):
            (model(x, y) / args.gradient_accumulation_steps).backward()
            if {boundary}:
                optimizer.step()
                optimizer.zero_grad()
    library.finish(optimizer)
"""


def test_what_comes_after_the_training_undoes_no_leak_between_passes() -> None:
    boundary = "(step + 1) % args.gradient_accumulation_steps == 0"
    assert codes_in(AFTER.format(begin="pass", boundary=boundary)) == ["GA301"]


def test_it_may_use_what_is_left_there() -> None:
    boundary = "(epoch * len(loader) + step + 1) % args.gradient_accumulation_steps == 0"
    assert codes_in(AFTER.format(begin="pass", boundary=boundary)) == []
