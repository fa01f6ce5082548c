"""What lint knows of PyTorch's names: one table of them, and each form of a name read as the others are."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gradcheck_accum.lint
from gradcheck_accum.engine.scalings import SCALINGS
from gradcheck_accum.lint import lint_source
from gradcheck_accum.lint.program import torch_names
from gradcheck_accum.lint.program.names import Effect
from gradcheck_accum.lint.program.torch_names import Names, Table
from gradcheck_accum.sources.prefilter import may_train

ROOT = Path(gradcheck_accum.lint.__file__).parent
TABLE = {name: entry for name, entry in vars(torch_names).items() if isinstance(entry, (Names, Table))}
HANDLERS = {"METHODS", "LIBRARY", "BUILTINS"}
"""Tables that give the function that carries each name out."""

LOOP = """\
import torch
from torch.nn.utils import clip_grad_norm, clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_

model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(5, 6), torch.randn(5, 3)) for _ in range(12)]
parameters = list(model.parameters())
norm = torch.tensor(1.0)
flag = args.flag
K = 3
{before}
for i, (x, y) in enumerate(batches):
    loss = {loss}
    {every}
    loss.backward()
    {after}
    if (i + 1) % K == 0:
        {step}
        optimizer.step()
        {stepped}
        optimizer.zero_grad()
"""
MEAN = "torch.nn.functional.mse_loss(model(x), y)"
SCALED = f"{MEAN} / K"


def codes(
    loss: str = SCALED,
    *,
    before: str = "pass",
    every: str = "pass",
    after: str = "pass",
    step: str = "pass",
    stepped: str = "pass",
) -> set[str]:
    """The codes that are reported of a loop that is right if nothing is put into it."""
    found = lint_source(
        LOOP.format(loss=loss, before=before, every=every, after=after, step=step, stepped=stepped), "train.py"
    )
    return {finding.mistake.code for finding in found}


def test_the_loop_is_right_as_it_is_and_wrong_without_its_division() -> None:
    assert codes() == set()
    assert codes(MEAN) == {"GA101"}


def lists_of_names(tree: ast.Module) -> Iterator[tuple[int, set[str]]]:
    """The strings that stand together in a literal of a file, but for the tables of handlers, with their lines."""
    assigned = [n for n in tree.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    handlers = {id(n.value) for n in assigned if isinstance(n.target, ast.Name) and n.target.id in HANDLERS}
    for node in ast.walk(tree):
        values: list[ast.expr | None] = []
        if isinstance(node, ast.Dict) and id(node) not in handlers:
            values = node.keys
        elif isinstance(node, (ast.Set, ast.List, ast.Tuple)):
            values = [*node.elts]
        elif isinstance(node, ast.MatchOr):
            values = [pattern.value for pattern in node.patterns if isinstance(pattern, ast.MatchValue)]
        elif isinstance(node, ast.Attribute) and node.attr == "split" and isinstance(node.value, ast.Constant):
            values = [ast.Constant(word) for word in str(node.value.value).split()]
        constants = [value.value for value in values if isinstance(value, ast.Constant)]
        yield getattr(node, "lineno", 0), {value for value in constants if isinstance(value, str)}


def test_no_other_place_lists_names_of_the_table() -> None:
    known = {name for entry in TABLE.values() for name in entry} - set(dir(builtins))
    for path in ROOT.rglob("*.py"):
        if path != Path(str(torch_names.__file__)):
            for line, names in lists_of_names(ast.parse(path.read_text(encoding="utf-8"))):
                assert len(names & known) < 3, f"{path}:{line} lists {sorted(names & known)}"


def test_every_entry_is_used() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py"))
    assert [name for name in TABLE if sources.count(name) < 2] == []


@pytest.mark.parametrize(
    "entry", ["DIVIDES_IN_PLACE", "MULTIPLIES_IN_PLACE", "BOUNDS_IN_PLACE", "ASKS_EACH", "REDUCES"]
)
def test_pytorch_has_the_names(entry: str) -> None:
    assert [name for name in TABLE[entry] if not hasattr(torch.Tensor, name)] == []


def test_verify_watches_the_same_names_scale() -> None:
    """`lint` never imports what imports PyTorch, so the engine has a list of its own."""
    by_lint = torch_names.DIVIDES | torch_names.MULTIPLIES
    assert {name.rstrip("_") for name in SCALINGS if not name.startswith(torch_names.FOREACH)} == by_lint


@pytest.mark.parametrize("name", sorted(torch_names.BACKWARD))
def test_the_gate_knows_every_backward(name: str) -> None:
    assert may_train(f"trainer.{name}(loss)\noptimizer.step()\n".encode())


@pytest.mark.parametrize("name", sorted(torch_names.GATES))
def test_the_gate_knows_every_argument_that_tells_to_step(name: str) -> None:
    assert may_train(f"scaler(loss, optimizer, {name}=True)\n".encode())


@pytest.mark.parametrize("name", sorted(torch_names.DIVIDES))
@pytest.mark.parametrize(
    "parts",
    [
        {"loss": f"{MEAN}.NAME(K)"},
        {"loss": f"torch.NAME({MEAN}, K)"},
        {"loss": MEAN, "every": "loss.NAME_(K)"},
        {"loss": MEAN, "step": "[p.grad.NAME_(K) for p in model.parameters()]"},
        {"loss": MEAN, "step": "for p in model.parameters(): p.grad.NAME_(K)"},
        {"loss": MEAN, "step": "torch._foreach_NAME_([p.grad for p in model.parameters()], K)"},
        {"loss": MEAN, "step": "if flag: torch._foreach_NAME_([p.grad for p in model.parameters()], K)"},
    ],
)
def test_a_division_under_any_of_its_names(name: str, parts: dict[str, str]) -> None:
    assert codes(**{part: text.replace("NAME", name) for part, text in parts.items()}) == set()
    assert codes(**{part: text.replace("NAME", name).replace("K", "7 * K") for part, text in parts.items()}) != set()


@pytest.mark.parametrize("name", sorted(torch_names.MULTIPLIES))
@pytest.mark.parametrize(
    "parts",
    [
        {"loss": f"{MEAN}.NAME(1 / K)"},
        {"loss": f"torch.NAME({MEAN}, 1 / K)"},
        {"loss": MEAN, "every": "loss.NAME_(1 / K)"},
        {"loss": MEAN, "step": "for p in model.parameters(): p.grad.NAME_(1 / K)"},
    ],
)
def test_a_multiplication_under_any_of_its_names(name: str, parts: dict[str, str]) -> None:
    assert codes(**{part: text.replace("NAME", name) for part, text in parts.items()}) == set()


@pytest.mark.parametrize("name", ["addcmul_(x, y)", "lerp_(x, 0.3)", "neg_()", "normal_()", "masked_fill_(x, 0)"])
def test_gradients_changed_by_hand_are_not_known(name: str) -> None:
    assert codes(MEAN, step=f"for p in model.parameters(): p.grad.{name}") == set()


@pytest.mark.parametrize("name", ["detach_()", "nan_to_num_()", "clone()", "norm()", "__len__()"])
def test_gradients_that_are_left_as_they_are_stay_known(name: str) -> None:
    assert codes(MEAN, step=f"for p in model.parameters(): p.grad.{name}") == {"GA101"}


@pytest.mark.parametrize("name", sorted(torch_names.CLIPS))
def test_a_clip_under_a_condition_that_is_not_known(name: str) -> None:
    call = f"{name}(parameters, 1.0{', norm' if name == 'clip_grads_with_norm_' else ''})"
    assert codes(after=f"if flag: {call}") == {"GA401"}
    assert codes(before=f"def tidy(): {call}", after="if flag: tidy()") == {"GA401"}
    assert codes(step=f"if flag: {call}") == set()


@pytest.mark.parametrize("name", sorted(torch_names.BOUNDS_IN_PLACE | torch_names.SETS_IN_PLACE))
def test_gradients_changed_in_place_under_a_condition_that_is_not_known(name: str) -> None:
    arguments = {"zero_": "", "fill_": "0"}.get(name, "-1, 1")
    code = "GA401" if name in torch_names.BOUNDS_IN_PLACE else "GA202"
    one_by_one = f"def tidy(): [p.grad.{name}({arguments}) for p in model.parameters()]"
    all_at_once = f"def tidy(): torch._foreach_{name}([p.grad for p in model.parameters()], {arguments})"
    assert codes(before=one_by_one, after="if flag: tidy()") == {code}
    assert codes(before=all_at_once, after="if flag: tidy()") == {code}


@pytest.mark.parametrize("name", sorted(torch_names.ASKS_EACH - {"bool"}))
def test_a_mask_under_any_of_its_names(name: str) -> None:
    given = "" if name.startswith(("is", "logical_not")) else "y" if name.startswith("logical") else "0"
    each = "torch.nn.functional.mse_loss(model(x), y, reduction='none')"
    for mask in (f"y.{name}({given})", f"torch.{name}(y{given and ', '}{given})"):
        assert codes(f"{each}[{mask}].mean() / K") == {"GA104"}
        assert codes(f"{each}.mean() / K", every=f"shown = {mask}") == set()


@pytest.mark.parametrize("name", sorted(torch_names.COUNTS_ELEMENTS))
def test_a_count_of_what_a_mask_left_under_any_of_its_names(name: str) -> None:
    each = "torch.nn.functional.mse_loss(model(x), y, reduction='none')"
    assert codes(f"{each}[y > 0].sum() / y[y > 0].{name}() / K") == {"GA104"}
    assert codes(f"{each}.sum() / y.{name}() / K") == set()


def test_a_scheduler_that_stands_beside_the_averages_of_weights_is_no_optimizer() -> None:
    assert codes(before="swa = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)", stepped="swa.step()") == set()


MOVING = """\
@torch.no_grad()
def ahead():
    for p in model.parameters():
        p.NAME(p.grad)
        p.grad.zero_()
"""
EACH = "torch.nn.functional.mse_loss(model(x), y, reduction='none')"
LEFT_OPEN = {
    "NO_LOSS": ("GA801", "topk", "square", {"before": "kept = []", "every": "kept.append(loss.NAME())"}),
    "GIVES_NO_DATA": ("GA104", "max", "sum", {"loss": f"{EACH}.sum() / y.NAME() / K"}),
    "MOVES_WEIGHTS": ("GA202", "sub_", "dot", {"before": MOVING, "after": "ahead()"}),
}
"""For each entry that leaves something open: what is found with another name, one of its own, and another."""


def test_every_entry_that_leaves_something_open_has_twins() -> None:
    assert {name for name, entry in TABLE.items() if entry.effect is Effect.LEAVES_OPEN} == LEFT_OPEN.keys()


@pytest.mark.parametrize("entry", LEFT_OPEN)
def test_what_an_entry_leaves_open_is_not_found(entry: str) -> None:
    code, own, other, parts = LEFT_OPEN[entry]
    assert own in TABLE[entry]
    assert other not in TABLE[entry]
    assert code not in codes(**{part: text.replace("NAME", own) for part, text in parts.items()})
    assert code in codes(**{part: text.replace("NAME", other) for part, text in parts.items()})
