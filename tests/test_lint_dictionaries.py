"""Dictionaries: nothing that a program puts into one is lost, whoever knows the key."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

HEAD = """\
import torch
from torch import nn

"""


def codes(source: str) -> list[str]:
    return sorted(codes_in(HEAD + source))


BY_AN_UNKNOWN_NAME = """\
class Probes:
    def __init__(self, config):
        self.config = config
        self.probes = {{}}
        for layer in config.layers:
            for seed in config.seeds:
                self.probes[{key}] = nn.Linear(5, 2)
        groups = [{{"params": probe.parameters(), "lr": 0.1}} for probe in self.probes.values()]
        self.optimizer = torch.optim.Adam(groups)
        self.turn = 0

    def fit(self, loader, features, criterion):
        every = self.config.probe_interval
        wrapped = {{name: torch.compile(probe) for name, probe in self.probes.items()}}
        for x, y in loader:
            seen = features(x)
            for name, probe in self.probes.items():
                (criterion({probe}(seen[name]), y) / every).backward()
                {each}
            self.turn += 1
            if self.turn % every == 0:
                {before}
                self.optimizer.step()
                self.optimizer.zero_grad()
"""
CLIP = "nn.utils.clip_grad_norm_(probe.parameters(), 1.0)"


@pytest.mark.parametrize("key", ["layer", 'f"{layer}/{seed}"', "(layer, seed)", "name_of(layer, seed)"])
@pytest.mark.parametrize("probe", ["probe", "wrapped[name]"])
def test_networks_by_names_that_a_program_gets(key: str, probe: str) -> None:
    def with_(each: str = "pass", before: str = "pass") -> list[str]:
        return codes(BY_AN_UNKNOWN_NAME.format(key=key, probe=probe, each=each, before=before))

    assert with_(each=CLIP) == ["GA401"]
    assert with_(each="self.optimizer.zero_grad()") == ["GA202"]
    assert with_(before=f"for probe in self.probes.values(): {CLIP}") == []
    assert with_() == []


MADE_OF_ANOTHER = """\
def train(loader, criterion):
    nets = {{name: nn.Linear(5, 2) for name in {names}}}
    optimizers = {{name: torch.optim.SGD(net.parameters(), lr=0.1) for name, net in nets.items()}}
    assert len(loader) % 3 == 0
    for i, (x, y) in enumerate(loader):
        for name in nets:
            (criterion(nets[name](x), y) / 3).backward()
        if (i + 1) % 3 == 0:
            for name, optimizer in optimizers.items():
                optimizer.step()
                {clear}
"""


@pytest.mark.parametrize("names", ["range(1)", '["left"]', '{"left": 5}'])
def test_a_dictionary_that_is_made_of_another(names: str) -> None:
    assert codes(MADE_OF_ANOTHER.format(names=names, clear="optimizers[name].zero_grad()")) == []
    assert codes(MADE_OF_ANOTHER.format(names=names, clear="pass")) == ["GA203"]


def test_whether_a_key_is_in_a_dictionary_of_unknown_ones_is_open() -> None:
    source = """\
def train(model, loader, criterion, optimizer, names):
    hooks = {{{known}}}
    for name in names:
        hooks[{key}] = name
    for i, (x, y) in enumerate(loader):
        if "probe" in hooks:
            optimizer.zero_grad()
        (criterion(model(x), y) / 3).backward()
        if (i + 1) % 3 == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""
    assert "GA201" in codes(source.format(known="", key="name"))
    assert "GA201" in codes(source.format(known='"probe": 1', key="name"))
    assert "GA201" not in codes(source.format(known="", key='"other"'))


def test_how_many_items_a_dictionary_of_unknown_keys_has_is_not_known() -> None:
    source = """\
def train(model, loader, criterion, optimizer, tasks):
    heads = {}
    for task in tasks:
        heads[task] = nn.Linear(5, 2)
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) / len(heads)).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    assert "GA101" not in codes(source)


def test_what_is_taken_out_of_a_dictionary_is_no_longer_there() -> None:
    source = """\
def train(model, loader, criterion, optimizer):
    held = {"total": 0.0}
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / 3
        loss.backward()
        held["total"] = held.get("total", 0.0) + loss
        CLEAR
        if (i + 1) % 3 == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""
    assert "GA801" in codes(source.replace("CLEAR", "pass"))
    assert "GA801" not in codes(source.replace("CLEAR", "held.clear()"))


@pytest.mark.parametrize("nets", ["[nn.Linear(5, 2)]", "nn.ModuleList([nn.Linear(5, 2) for _ in heads])"])
@pytest.mark.parametrize("inner", ["net in nets", "k, net in enumerate(nets)"])
def test_a_loop_over_models_inside_of_one_over_data(nets: str, inner: str) -> None:
    source = """\
def train(loader, criterion, heads):
    nets = {nets}
    optimizer = torch.optim.SGD([p for net in nets for p in net.parameters()], lr=0.1)
    for i, (x, y) in enumerate(loader):
        for {inner}:
            (criterion(net(x), y) / 3).backward()
            {each}
        if (i + 1) % 3 == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""
    clip = "nn.utils.clip_grad_norm_(net.parameters(), 1.0)"
    assert "GA401" in codes(source.format(nets=nets, inner=inner, each=clip))
    assert "GA401" not in codes(source.format(nets=nets, inner=inner, each="pass"))


def test_a_loop_over_models_that_each_train_on_all_data_is_no_batch() -> None:
    source = """\
def train(rounds, loader, criterion):
    nets = [nn.Linear(5, 2)]
    for turn in rounds:
        for net in nets:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for i, (x, y) in enumerate(loader):
                (criterion(net(x), y) / 3).backward()
                if (i + 1) % 3 == 0 or i + 1 == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()
"""
    assert codes(source) in ([], ["GA103"])


LOSSES = """\
from elsewhere import Terms

def train(net, loader, K):
    terms = Terms()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for i, (x, y) in enumerate(loader):
        losses = terms(net(x), y)
        {change}
        losses["total"].backward()
        if (i + 1) % K == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("losses = {name: loss / K for name, loss in losses.items()}", ["GA103"]),
        ("losses = {name: losses[name] / K for name in losses}", ["GA103"]),
        ("losses = {name: loss for name, loss in losses.items()}", ["GA101"]),
        ("losses = {name: loss.mean() for name, loss in losses.items()}", ["GA101"]),
        # Which of the losses is written is not known: it may be the one that is used, or not.
        ("for name in losses: losses[name] = losses[name] / K", []),
        ("for name, loss in losses.items(): losses[name] = loss / K", []),
        ("for name, loss in losses.items(): print(name, loss.item())", ["GA101"]),
    ],
)
def test_losses_that_a_call_gives_by_names(change: str, found: list[str]) -> None:
    assert codes(LOSSES.format(change=change)) == found
