"""Loops in the manner of research repositories: options and parts of batches whose numbers the source does not show."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

PARTS = """\
import torch

class Learner:
    def __init__(self, net, rows, opts, stream):
        self.net, self.rows, self.opts, self.stream = net, rows, opts, stream
        self.optimizer = torch.optim.AdamW(net.parameters())

    def mean_of(self, x, weight):
        return (self.net(x) * weight).mean()

    def train(self):
        for x, weight in self.stream:
            {before}
            for {each}:
                loss = self.mean_of({part}){scaling}
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
"""
BY_SHAPE = {
    "before": "parts = x.reshape({sizes}); weights = weight.reshape({sizes_of_weights})",
    "each": "p, w in zip(parts, weights)",
    "part": "p, w",
}
SHAPES = {
    "by a division": ("x.shape[0] // self.rows, self.rows, *x.shape[1:]", "x.shape[0] // self.rows, self.rows"),
    "what follows": ("-1, self.rows, *x.shape[1:]", "-1, self.rows"),
    "two sizes": ("-1, self.rows", "-1, self.rows"),
}


@pytest.mark.parametrize("scaling", ["", " / len(parts)", " / parts.shape[0]", " / (x.shape[0] // self.rows)"])
@pytest.mark.parametrize("sizes", SHAPES.values(), ids=SHAPES)
def test_parts_by_a_shape_whose_sizes_are_not_shown(sizes: tuple[str, str], scaling: str) -> None:
    places = BY_SHAPE | {"before": BY_SHAPE["before"].format(sizes=sizes[0], sizes_of_weights=sizes[1])}
    assert codes_in(PARTS.format(**places, scaling=scaling)) == ([] if scaling else ["GA101"])


STRIDED = """\
import torch

def train(net, batches, opts):
    optimizer = torch.optim.AdamW(net.parameters())
    for batch in batches:
        {places}
        for j in range(opts.parts):
            {cut}
            loss = net(part).mean(){scaling}
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
CUTS = {
    "with a stride": ("pass", 'part = batch["x"][j :: opts.parts]'),
    "by places": ('places = list(range(len(batch["x"])))', 'part = batch["x"][places[j :: opts.parts]]'),
    "by places of a tensor": ('places = torch.arange(len(batch["x"]))', 'part = batch["x"][places[j :: opts.parts]]'),
    "each tensor": ("pass", "part = {name: one[j :: opts.parts] for name, one in batch.items()}"),
    "each tensor, moved": (
        'places = list(range(len(batch["x"])))',
        "cut = places[j :: opts.parts]; part = {name: batch[name][cut].cuda() for name in batch}",
    ),
}


@pytest.mark.parametrize("scaling", ["", " / opts.parts"])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_parts_by_a_stride(cut: tuple[str, str], scaling: str) -> None:
    found = codes_in(STRIDED.format(places=cut[0], cut=cut[1], scaling=scaling))
    assert found == ([] if scaling else ["GA101"])


OPTIONS = """\
import torch
from options import {make}
from parts import network, stream

def train(opt, net, batches):
    optimizer = torch.optim.Adam(net.parameters(), opt.lr)
    for epoch in range(opt.epochs):
        for i, batch in enumerate(batches):
            loss = net(batch).mean() / opt.grad_acc
            loss.backward()
            if (i + 1) % opt.grad_acc == 0{flush}:
                optimizer.step()
                optimizer.zero_grad()

opt = {options}
train(opt, network(opt), stream(opt))
"""


@pytest.mark.parametrize(
    ("make", "options"), [("opts", "opts().parse()"), ("opts", "opts()"), ("Options", "Options().read().all()")]
)
def test_options_are_no_optimizer_and_have_names(make: str, options: str) -> None:
    assert codes_in(OPTIONS.format(make=make, options=options, flush="")) == ["GA301"]
    assert codes_in(OPTIONS.format(make=make, options=options, flush=" or i + 1 == len(batches)")) == ["GA103"]


IN_A_PASS = """\
import torch
from parts import network, stream, settings

def one_pass(net, batches, optimizer, cfg):
    whole = cfg.RANKS * cfg.ROWS
    steps = cfg.ALL_ROWS // whole
    for i, batch in enumerate(batches):
        loss = net(batch).mean() / steps
        loss.backward()
        if (i + 1) % steps == 0{flush}:
            optimizer.step()
            optimizer.zero_grad()

def main():
    cfg = settings()
    net, batches = network(cfg), stream(cfg)
    optimizer = torch.optim.SGD(net.parameters(), cfg.LR)
    for epoch in range(cfg.EPOCHS):
        one_pass(net, batches, optimizer, cfg)

main()
"""


def test_a_k_that_each_pass_computes_from_settings() -> None:
    assert codes_in(IN_A_PASS.format(flush="")) == ["GA301"]
    assert codes_in(IN_A_PASS.format(flush=" or i + 1 == len(batches)")) == ["GA103"]


ZIPPED = """\
import itertools
import torch
from parts import network, stream, start

for fold in range(4):
    batches, first = stream(fold), start(fold)
    net = network(fold)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for batch, i in zip(batches, {count}):
        loss = net(batch).mean() / 5
        loss.backward()
        if (i + 1) % 5 == 0:
            optimizer.step()
            optimizer.zero_grad()
        if (i + 1) % 20 == 0:
            print(i)
        if (i + 1) % 50 == 0:
            torch.save(net, "net.pt")
"""


@pytest.mark.parametrize("count", ["range(first, 6000)", "range(first, last)", "range(last)"])
def test_data_that_are_zipped_with_a_count_end_after_steps(count: str) -> None:
    assert codes_in("last = start()\n" + ZIPPED.format(count=count)) == []
    assert codes_in("last = start()\n" + ZIPPED.format(count=count).replace(" / 5", "")) == ["GA101"]
