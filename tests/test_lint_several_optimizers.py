"""Optimizers that share a model, or a helper that makes them: whose gradients each of them steps and clears."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in

from gradcheck_accum.lint.state.values import Optimizer

HEAD = """\
import torch
from torch import nn

"""
SORTINGS = {
    "two comprehensions": """\
    first = [p for n, p in model.named_parameters() if n.startswith("body")]
    rest = [p for n, p in model.named_parameters() if not n.startswith("body")]
""",
    "trainable ones by name": """\
    first = [p for n, p in model.named_parameters() if p.requires_grad and "body" in n]
    rest = [p for n, p in model.named_parameters() if p.requires_grad and "body" not in n]
""",
    "filter": """\
    chosen = {id(p) for p in model.body.parameters()}
    first = list(filter(lambda p: id(p) in chosen, model.parameters()))
    rest = list(filter(lambda p: id(p) not in chosen, model.parameters()))
""",
    "a loop that sorts them": """\
    first, rest = [], []
    for name, parameter in model.named_parameters():
        if "body" in name:
            first.append(parameter)
        else:
            rest.append(parameter)
""",
    "a loop that goes on": """\
    first, rest = [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if "body" in name:
            first.append(parameter)
            continue
        rest.append(parameter)
""",
}
LOOP = """\
def train(model, loader, criterion):
{sorting}
    a = torch.optim.SGD(first, lr=0.1)
    b = torch.optim.Adam(rest, lr=0.1)
    assert len(loader) % 3 == 0
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) / 3).backward()
        if (i + 1) % 3 == 0:
            {steps}
"""
by_sorting = pytest.mark.parametrize("sorting", SORTINGS.values(), ids=SORTINGS.keys())


def codes(source: str) -> list[str]:
    return sorted(codes_in(HEAD + source))


@by_sorting
@pytest.mark.parametrize(
    "steps",
    [
        "a.step(); a.zero_grad(); b.step(); b.zero_grad()",
        "a.step(); b.step(); a.zero_grad(); b.zero_grad()",
        "a.step(); b.step(); model.zero_grad()",
        "nn.utils.clip_grad_norm_(first, 1.0); a.step(); b.step(); model.zero_grad()",
    ],
)
def test_two_parts_of_a_model_that_are_both_cleared(sorting: str, steps: str) -> None:
    assert codes(LOOP.format(sorting=sorting, steps=steps)) == []


@by_sorting
def test_the_part_that_is_never_cleared(sorting: str) -> None:
    assert codes(LOOP.format(sorting=sorting, steps="a.step(); b.step(); a.zero_grad()")) == ["GA204"]


@by_sorting
def test_the_part_that_is_cleared_before_its_step(sorting: str) -> None:
    assert codes(LOOP.format(sorting=sorting, steps="b.zero_grad(); a.step(); b.step(); a.zero_grad()")) == ["GA202"]


def test_all_that_can_be_trained_are_all() -> None:
    sorting = "    first = [p for p in model.parameters() if p.requires_grad]; rest = head.parameters()"
    right = LOOP.format(sorting=sorting, steps="a.step(); b.step(); model.zero_grad(); b.zero_grad()")
    assert codes(right.replace("model(x)", "head(model(x))")) == []


def test_what_happens_to_some_of_an_optimizers_parameters_is_not_followed() -> None:
    source = """\
def train(model, loader, criterion):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    body = [p for n, p in model.named_parameters() if "body" in n]
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) / 3).backward()
        {each}
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    cleared = "for p in body: p.grad = None"
    assert codes(source.format(each=cleared)) == []
    assert "GA202" in codes(source.format(each="for p in model.parameters(): p.grad = None"))


MADE_BY_A_HELPER = """\
def make(network{parameter}):
    return torch.optim.Adam({parameters}, lr=1e-3)

def train(loader, criterion):
    one, other = nn.Linear(4, 4), nn.Linear(4, 2)
    a, b = {made}
"""
TRAINED_APART = """\
    assert len(loader) % 3 == 0
    for i, (x, y) in enumerate(loader):
        (criterion(other(one(x).detach()), y) / 3).backward()
        (criterion(one(x), x) / 3).backward()
        if (i + 1) % 3 == 0:
            {steps}
"""
TWO_STEPS = "b.step(); b.zero_grad(); a.step()"
MAKINGS = [
    {"parameter": "", "parameters": "network.parameters()", "made": "make(one), make(other)"},
    {"parameter": "", "parameters": "network.parameters()", "made": "[make(net) for net in (one, other)]"},
    {"parameter": "", "parameters": "network", "made": "make(one.parameters()), make(other.parameters())"},
]


@pytest.mark.parametrize("making", MAKINGS)
def test_a_helper_that_is_called_twice_makes_two_optimizers(making: dict[str, str]) -> None:
    source = MADE_BY_A_HELPER.format(**making) + TRAINED_APART
    assert codes(source.format(steps=f"{TWO_STEPS}; a.zero_grad()")) == []
    assert codes(source.format(steps=TWO_STEPS)) == ["GA204"]


def test_networks_that_one_helper_makes_are_two() -> None:
    built = """\
def build(outputs):
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, outputs))

def train(loader, criterion):
    one, other = build(4), build(2)
    a, b = torch.optim.SGD(one.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1)
"""
    assert codes(built + TRAINED_APART.format(steps=f"{TWO_STEPS}; a.zero_grad()")) == []
    assert codes(built + TRAINED_APART.format(steps=TWO_STEPS)) == ["GA204"]


def test_a_helper_that_is_called_again_at_one_place_makes_the_same() -> None:
    source = """\
def make(network):
    return torch.optim.SGD(network.parameters(), lr=0.1)

def train(loader, criterion, epochs):
    for epoch in range(epochs):
        model = nn.Linear(4, 2)
        optimizer = make(model)
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y){scaling}).backward()
            if (i + 1) % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
        optimizer.zero_grad()
"""
    assert codes(source.format(scaling=" / 3")) == ["GA301"]
    assert codes(source.format(scaling="")) == ["GA101", "GA301"]


MEMBERS = {
    "an argument's": ("", "model.body", "model.head"),
    "a network's that is made here": ("model = Net()", "model.body", "model.head"),
    "a sequence's": ("model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2))", "model[0]", "model[1]"),
    "a member's own": ("model = Net()", "model.encoder.body", "model.encoder.head"),
    "one of them and all": ("", "model.body", "model"),
}
OF_MEMBERS = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.body(x))

def train(model, loader, criterion):
    {made}
    a = torch.optim.SGD({first}.parameters(), lr=0.1)
    b = torch.optim.Adam({rest}.parameters(), lr=0.1)
    assert len(loader) % 3 == 0
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) / 3).backward()
        {each}
        if (i + 1) % 3 == 0:
            {steps}
"""
of_members = pytest.mark.parametrize("members", MEMBERS.values(), ids=MEMBERS.keys())


def codes_of_members(members: tuple[str, str, str], steps: str, each: str = "pass") -> list[str]:
    made, first, rest = members
    return codes(OF_MEMBERS.format(made=made or "pass", first=first, rest=rest, steps=steps, each=each))


@of_members
@pytest.mark.parametrize(
    "steps",
    ["a.step(); b.step(); a.zero_grad(); b.zero_grad()", "b.step(); a.step(); model.zero_grad()"],
)
def test_members_of_a_model_that_step_together(members: tuple[str, str, str], steps: str) -> None:
    assert codes_of_members(members, steps) == []
    clip = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    assert codes_of_members(members, f"{clip}; {steps}") == []
    assert codes_of_members(members, steps, each=clip) == ["GA401"]


@of_members
def test_a_member_that_is_never_cleared(members: tuple[str, str, str]) -> None:
    assert codes_of_members(members, "a.step(); b.step(); a.zero_grad()") == ["GA204"]


@of_members
def test_a_loss_of_the_whole_may_reach_one_member_where_they_step_apart(members: tuple[str, str, str]) -> None:
    source = OF_MEMBERS.replace("        (criterion(model(x), y) / 3).backward()\n", "{turns}")
    made, first, rest = members
    turns = """\
        a.zero_grad(); b.zero_grad()
        criterion(model(x, only="body"), y).backward(); a.step()
        criterion(model(x, only="head"), y).backward(); b.step()
"""
    slots = {"made": made or "pass", "first": first, "rest": rest, "each": "pass", "steps": "pass"}
    assert codes(source.format(turns=turns, **slots)) == []


def test_one_optimizer_of_several_members_is_reached_by_the_whole() -> None:
    source = """\
def train(model, critic, loader, criterion):
    a = torch.optim.SGD([*model.body.parameters(), *model.head.parameters()], lr=0.1)
    b = torch.optim.Adam(critic.parameters(), lr=0.1)
    assert len(loader) % 3 == 0
    for i, (x, y) in enumerate(loader):
        {clear}
        criterion(critic(x), y).backward()
        b.step()
        b.zero_grad()
        (criterion(model(x), y) / 3).backward()
        if (i + 1) % 3 == 0:
            a.step()
            a.zero_grad()
"""
    assert codes(source.format(clear="pass")) == []
    assert codes(source.format(clear="a.zero_grad()")) == ["GA201"]


def test_two_parts_of_one_model_are_as_good_as_two_models() -> None:
    whole = Optimizer("all", frozenset({"net"}))
    member, chosen = Optimizer("a", frozenset({"net.body"})), Optimizer("b", frozenset({"net where 'body' in n"}))
    for optimizer in (whole, member, chosen):
        assert optimizer.may_update(frozenset({"net"}))
        assert not optimizer.may_update(frozenset({"network"}))
    assert not member.may_update(frozenset({"net.head"}))
    assert not chosen.may_update(frozenset({"net where not ('body' in n)"}))
    assert whole.may_update(frozenset({"net.head"}))
    assert whole.may_update(frozenset({"net where not ('body' in n)"}))
    assert member.may_update(frozenset({"net.body.first where p.ndim > 1"}))


ONE_AFTER_THE_OTHER = {
    "a comprehension": "nets = [nn.Linear(5, 5) for _ in range(2)]",
    "a comprehension over names": "nets = [build(name) for name in ('body', 'head')]",
    "one of a dictionary": "nets = {i: nn.Linear(5, 5) for i in range(2)}",
    "a loop": "nets = []\n    for _ in range(2): nets.append(nn.Linear(5, 5))",
    "a loop over names": "nets = []\n    for name in ('body', 'head'): nets.append(build(name))",
}


@pytest.mark.parametrize("made", ONE_AFTER_THE_OTHER.values(), ids=ONE_AFTER_THE_OTHER.keys())
def test_networks_that_one_line_makes_one_after_the_other(made: str) -> None:
    source = """\
def train(loader, criterion):
    {made}
    a = torch.optim.SGD(nets[0].parameters(), lr=0.1)
    b = torch.optim.Adam(nets[1].parameters(), lr=0.1)
    assert len(loader) % 3 == 0
    for i, (x, y) in enumerate(loader):
        (criterion(nets[0](x), y) / 3).backward()
        (criterion(nets[1](x), y) / 3).backward()
        if (i + 1) % 3 == 0:
            {steps}
"""
    assert codes(source.format(made=made, steps="a.step(); a.zero_grad(); b.step(); b.zero_grad()")) == []
    assert codes(source.format(made=made, steps="a.step(); a.zero_grad(); b.step()")) == ["GA204"]


def test_a_member_that_is_called_by_a_name_of_its_own() -> None:
    source = """\
def train(loader, criterion, K):
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2))
    body, head = model[0], model[1]
    a = torch.optim.SGD(body.parameters(), lr=0.1)
    b = torch.optim.Adam(head.parameters(), lr=0.1)
    assert len(loader) % K == 0
    for i, (x, y) in enumerate(loader):
        (criterion(head(body(x)), y) / K).backward()
        if (i + 1) % K == 0:
            {steps}
"""
    assert codes(source.format(steps="a.step(); b.step(); a.zero_grad(); b.zero_grad()")) == []
    assert codes(source.format(steps="a.step(); b.step(); a.zero_grad()")) == ["GA204"]


def test_a_range_of_nothing_is_no_crash() -> None:
    source = "def train(model, loader, optimizer):\n    for epoch in range():\n        for x in loader:\n"
    assert codes(source + "            model(x).backward()\n            optimizer.step()\n") in ([], ["GA203"])


PARAMETERS = {
    "lists": "list(encoder.parameters()) + list(head.parameters())",
    "unpacked": "[*encoder.parameters(), *head.parameters()]",
    "groups": "[{'params': encoder.parameters(), 'lr': 0.1}, {'params': head.parameters()}]",
}


@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=PARAMETERS.keys())
@pytest.mark.parametrize(
    ("clearing", "found"),
    [
        ("encoder.zero_grad()", ["GA204"]),
        ("head.zero_grad()", ["GA204"]),
        ("encoder.zero_grad(); head.zero_grad()", []),
        ("optimizer.zero_grad()", []),
        ("head.zero_grad(); optimizer.zero_grad()", []),
    ],
)
def test_one_optimizer_of_two_networks_of_which_some_are_cleared(
    parameters: str, clearing: str, found: list[str]
) -> None:
    source = f"""\
def train(loader, criterion, K):
    encoder, head = nn.Linear(5, 4), nn.Linear(4, 2)
    optimizer = torch.optim.Adam({parameters}, lr=0.01)
    assert len(loader) % K == 0
    for i, (x, y) in enumerate(loader):
        (criterion(head(encoder(x)), y) / K).backward()
        if (i + 1) % K == 0:
            nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
            optimizer.step()
            {clearing}
"""
    assert codes(source) == found


def test_a_network_that_is_cleared_and_of_no_optimizer_is_none_of_its_parts() -> None:
    source = """\
def train(loader, criterion, K):
    encoder, head, critic = nn.Linear(5, 4), nn.Linear(4, 2), nn.Linear(5, 1)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.01)
    assert len(loader) % K == 0
    for i, (x, y) in enumerate(loader):
        (criterion(head(encoder(x)), y) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            critic.zero_grad()
            optimizer.zero_grad()
"""
    assert codes(source) == []


ALONE = """\
import torch
import torch.nn.functional as F

def train(made, judge, loader, K):
    a, b = torch.optim.Adam(judge.parameters()), torch.optim.Adam(made.parameters())
    own, others = list(judge.parameters()), list(made.parameters())
    for n, x in enumerate(loader, start=1):
        fake = made(torch.randn(4, 3))
        (F.softplus(-judge(x) + judge(fake.detach())).mean() / K).backward({of_judge})
        (F.softplus(-judge(fake)).mean() / K).backward({of_made})
        if n % K == 0 or n == len(loader):
            a.step(); b.step(); a.zero_grad(); b.zero_grad()
"""


def test_a_backward_for_some_weights_fills_no_others() -> None:
    alone = ALONE.format(of_judge="inputs=own", of_made="inputs=others")
    assert "GA204" not in codes(alone)
    assert "GA204" in codes(ALONE.format(of_judge="inputs=own", of_made=""))
    assert codes(ALONE.format(of_judge="inputs=own", of_made="inputs=own")) != codes(alone)


WITHOUT_A_GRAPH = """\
import torch
import torch.nn.functional as F

def train(maker, judge, loader, K=3):
    of_judge, of_maker = torch.optim.Adam(judge.parameters()), torch.optim.Adam(maker.parameters())
    for _ in range(40):
        for _ in range(K):
            real, seed = next(loader), torch.randn(4, 6)
            with torch.no_grad():
                fake = maker(seed)
            ((F.softplus(-judge(real)).mean() + F.softplus(judge(fake)).mean()) / K).backward()
        of_judge.step()
        of_judge.zero_grad()
        for _ in range(K):
            (F.softplus(-judge(maker(torch.randn(4, 6)))).mean() / K).backward()
        of_maker.step()
        of_maker.zero_grad()
        {last}
"""


def test_what_was_computed_without_a_graph_is_cut_off() -> None:
    assert codes(WITHOUT_A_GRAPH.format(last="pass")) == ["GA204"]
    assert codes(WITHOUT_A_GRAPH.format(last="of_judge.zero_grad()")) == []


BY_KEY = """\
import torch
from torch import nn

reader = nn.Linear(6, 3)
speaker = nn.ModuleDict({{"words": nn.Linear(3, 3), "out": nn.Linear(3, 2)}})
of_reader = torch.optim.SGD(reader.parameters(), lr=0.1)
of_speaker = torch.optim.SGD(speaker.parameters(), lr=0.1)
{first}
for i in range(18):
    u, wanted = torch.randn(5, 6), torch.randint(0, 2, (5,))
    out = speaker["out"](speaker["words"](reader(u)))
    (nn.functional.cross_entropy(out, wanted) / 3).backward()
    if (i + 1) % 3 == 0:
        of_reader.step()
        of_speaker.step()
        {cleared}
"""
BOTH = "of_reader.zero_grad(); of_speaker.zero_grad()"


@pytest.mark.parametrize("first", ["", BOTH])
def test_what_is_cleared_before_any_gradient_is_no_clearing(first: str) -> None:
    def found(cleared: str) -> list[str]:
        return codes_in(BY_KEY.format(first=first, cleared=cleared))

    assert found(BOTH) == []
    assert found("of_speaker.zero_grad()") == ["GA204"]
    assert found("of_reader.zero_grad()") == ["GA204"]
    assert found("pass") == ["GA203", "GA203"]
