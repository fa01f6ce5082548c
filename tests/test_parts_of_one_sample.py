"""verify on micro-batches whose rows are one sample's parts, or one task's, and on batches that look alike.

Rows that belong together are no samples that are coupled. Each page has a look-alike that couples samples, which must
never be equivalent, or a wrong one. Expected gradients are worked out in float64, each sample or task by itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

EQUIVALENT, COUPLED = Verdict.EQUIVALENT, Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION
UNKNOWN, DEVIATES = Verdict.INCONCLUSIVE, Verdict.DEVIATES

K = 3


def codes(result: VerifyResult) -> list[str]:
    return sorted(d.mistake.code for d in result.diagnosis)


LOOP = """
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(7)
torch.set_default_dtype(torch.float64)
K = 3
{model}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{data}
for i, item in enumerate(data, 1):
    {loss}
    (loss{scale}).backward()
    if i % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def watched(folder: Path, model: str, data: str, loss: str, scale: str = " / K") -> VerifyResult:
    loss = loss.strip().replace("\n", "\n    ")
    return watch_source(LOOP.format(model=model, data=data, loss=loss, scale=scale), folder)


# A label for a bag, and for its best tiles

BAGS = """
class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.whole, self.each = nn.Linear(5, 8), nn.Linear(8, 3), nn.Linear(8, 3)
    def forward(self, tiles):
        h = torch.tanh(self.first(tiles))
        share = h.sum(1).softmax(0)
        return self.whole((share[:, None] * h).sum(0, keepdim=True)), self.each(h), share
model = Bag()
"""
OF_BAG = "F.cross_entropy(whole, label) + 0.5 * F.cross_entropy(each[best], label.{repeated})"
WITH_OWN = "F.cross_entropy(whole, label) + 0.5 * F.cross_entropy(each - each.mean(0), kinds)"
ALONE = "F.cross_entropy(each - each.mean(0), label.expand(len(tiles)))"


@pytest.mark.parametrize(
    ("loss", "scale", "verdict"),
    [
        (OF_BAG.format(repeated="expand(2)"), " / K", EQUIVALENT),
        (OF_BAG.format(repeated="repeat(2)"), " / K", EQUIVALENT),
        (OF_BAG.format(repeated="expand(2)"), "", DEVIATES),
        # Each row has a target of its own: a batch, with the most common kind for all of it.
        (WITH_OWN, " / K", COUPLED),
        # One label for a whole batch, and nothing that is compared with it as a whole.
        (ALONE, " / K", COUPLED),
    ],
    ids=["expanded", "repeated", "undivided", "targets-of-rows", "no-term-of-the-whole"],
)
def test_a_target_that_is_repeated_for_rows_is_none_of_theirs(
    loss: str, scale: str, verdict: Verdict, tmp_path: Path
) -> None:
    data = "data = [(torch.randn(4 + n % 3, 5), torch.tensor([n % 3]), torch.arange(4 + n % 3) % 3) for n in range(9)]"
    lines = (
        f"tiles, label, kinds = item\nwhole, each, share = model(tiles)\nbest = share.topk(2).indices\nloss = {loss}"
    )
    assert watched(tmp_path, BAGS, data, lines, scale).verdict is verdict


# The steps of one sequence

STEPS = """
class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = {first}, nn.Linear(6, {out})
    def forward(self, x):
        h = self.first(x).cumsum(0)
        return self.last(torch.tanh(h - h.mean({dimension}, keepdim=True)))
model = Steps()
"""
TOKENS, NUMBERS = {"first": "nn.Embedding(9, 6)", "out": 9}, {"first": "nn.Linear(4, 6)", "out": 4}
NEXT_TOKEN, NEXT_NUMBERS = "F.cross_entropy(model({x}), {y})", "F.mse_loss(model({x}), {y})"


@pytest.mark.parametrize(
    ("model", "data", "loss", "verdict"),
    [
        (TOKENS, "torch.randint(0, 9, (8,))", NEXT_TOKEN.format(x="item[:-1]", y="item[1:]"), UNKNOWN),
        (NUMBERS, "torch.randn(8, 4)", NEXT_NUMBERS.format(x="item[:-1]", y="item[1:]"), UNKNOWN),
        # Rows with targets of another tensor are samples, and so are those whose targets are other columns.
        (TOKENS, "torch.randint(0, 9, (2, 8))", NEXT_TOKEN.format(x="item[0]", y="item[1]"), COUPLED),
        (NUMBERS, "torch.randn(8, 8)", NEXT_NUMBERS.format(x="item[:, :4]", y="item[:, 4:]"), COUPLED),
        # Time first: the samples are along the second dimension, and depend on each other there.
        (
            {**TOKENS, "dimension": 1},
            "torch.randint(0, 9, (8, 4))",
            NEXT_TOKEN.format(x="item[:-1]", y="item[1:].flatten()").replace("])", "]).flatten(0, 1)"),
            COUPLED,
        ),
    ],
    ids=["tokens", "numbers", "other-targets", "other-columns", "time-first"],
)
def test_rows_whose_targets_are_the_next_rows_may_be_steps(
    model: dict[str, object], data: str, loss: str, verdict: Verdict, tmp_path: Path
) -> None:
    page = STEPS.format(**{"dimension": 0, **model})
    result = watched(tmp_path, page, f"data = [{data} for _ in range(9)]", f"loss = {loss}")
    assert result.verdict is verdict, result.reason
    assert ("the rows that follow them" in result.reason) is (verdict is UNKNOWN)


# Answers to one prompt

POLICY = """
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.mix, self.last = nn.Embedding(6, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 6)
    def forward(self, ids):
        return self.last(self.mix(self.first(ids))[0])
model = Policy()
"""
ANSWERS = """
with torch.no_grad():
    ids = {ids}
    for _ in range(4):
        ids = torch.cat([ids, {drawn}], 1)
reward = (ids[:, 3:] % 2).sum(1).double()
gain = reward - reward.mean()
chosen = F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none").sum(1)
loss = (gain * chosen).mean()
"""
MULTINOMIAL = "torch.multinomial(model(ids)[:, -1].softmax(-1), 1)"
CATEGORICAL = "torch.distributions.Categorical(logits=model(ids)[:, -1]).sample()[:, None]"


@pytest.mark.parametrize(
    ("ids", "drawn", "verdict"),
    [
        ("item.repeat(6, 1)", MULTINOMIAL, UNKNOWN),
        ("item.expand(6, -1)", CATEGORICAL, UNKNOWN),
        # A start token is the same in all micro-batches: six samples of a batch.
        ("torch.zeros(1, 3, dtype=torch.long).repeat(6, 1)", MULTINOMIAL, COUPLED),
        # Six prompts.
        ("torch.randint(0, 6, (6, 3))", MULTINOMIAL, COUPLED),
        # What is put next to the prompt is each row's own.
        ("torch.cat([item.repeat(6, 1), torch.randint(0, 6, (6, 1))], 1)", MULTINOMIAL, COUPLED),
    ],
    ids=["repeated", "expanded", "start-token", "prompts", "own-rows"],
)
def test_rows_that_were_made_of_one_may_be_parts_of_one_sample(
    ids: str, drawn: str, verdict: Verdict, tmp_path: Path
) -> None:
    data = "data = [torch.randint(0, 6, (3,)) for _ in range(9)]"
    result = watched(tmp_path, POLICY, data, ANSWERS.format(ids=ids, drawn=drawn))
    assert result.verdict is verdict, result.reason
    assert ("made of one row" in result.reason) is (verdict is UNKNOWN)


# Boxes of images

BOXES = """
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 20), nn.Unflatten(1, (5, 4)))
"""
IN_TURN = "loss = sum(F.l1_loss(o[:len(b)], b) for o, b in zip(out, boxes)) / 2"
INDEXED = "loss = torch.stack([F.l1_loss(out[j][:len(boxes[j])], boxes[j]) for j in range(2)]).mean()"
OF_ONE = "loss = F.l1_loss(out[:, :len(boxes[0])], boxes[0].expand(2, -1, -1))"


@pytest.mark.parametrize(
    ("loss", "scale", "verdict", "found"),
    [
        (IN_TURN, " / K", UNKNOWN, []),
        (INDEXED, " / K", UNKNOWN, []),
        (IN_TURN, "", DEVIATES, ["GA101", "GA104"]),
        (IN_TURN, " / K / K", DEVIATES, ["GA102", "GA104"]),
        # A mean over all boxes of a micro-batch is no image's.
        (OF_ONE, " / K", DEVIATES, ["GA104"]),
    ],
    ids=["in-turn", "indexed", "undivided", "divided-twice", "one-mean"],
)
def test_means_over_the_boxes_of_images_may_count_images(
    loss: str, scale: str, verdict: Verdict, found: list[str], tmp_path: Path
) -> None:
    data = "data = [(torch.randn(2, 6), [torch.rand(1 + (n + j) % 4, 4) for j in range(2)]) for n in range(9)]"
    result = watched(tmp_path, BOXES, data, f"x, boxes = item\nout = model(x)\n{loss}", scale)
    assert (result.verdict, codes(result)) == (verdict, found), result.reason


# Tasks

Batch = tuple[torch.Tensor, torch.Tensor]


def slope(weight: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The gradient of a mean of squared errors, by hand."""
    x, y = batch
    return 2 / len(x) * x.T @ (x @ weight - y)


def tasks(divisor: float, *, shared: str = "", steps: int = 2) -> tuple[VerifyResult, list[float]]:
    """First-order MAML of a linear model, and |g| / |g_true| of each step by arithmetic of its own.

    ``shared`` says what the query has of the support: nothing, its inputs, or its targets.
    """
    drawn = torch.Generator().manual_seed(3)

    def batch() -> Batch:
        return torch.randn(6, 4, generator=drawn).double(), torch.randn(6, 1, generator=drawn).double()

    weight = torch.nn.Parameter(torch.randn(4, 1, generator=drawn).double())
    optimizer = torch.optim.SGD([weight], lr=0.1)
    data = []
    for _ in range(3 * K):
        support, (x, y) = batch(), batch()
        data.append((support, (support[0] if shared == "inputs" else x, support[1] if shared == "targets" else y)))
    ratios = []
    with observe() as observation:
        for start in range(0, len(data), K):
            window, true = data[start : start + K], torch.zeros(4, 1).double()
            for (x, y), query in window:
                fast: torch.Tensor = weight
                moved = weight.detach().clone()
                for _ in range(steps):
                    (own,) = torch.autograd.grad(((x @ fast - y) ** 2).mean(), fast)
                    fast = fast - 0.1 * own
                    moved -= 0.1 * slope(moved, (x, y))
                (((query[0] @ fast - query[1]) ** 2).mean() / divisor).backward()
                true += slope(moved, query) / K
            assert weight.grad is not None
            ratios.append(float(weight.grad.norm() / true.norm()))
            optimizer.step()
            optimizer.zero_grad()
    return observation.result(), ratios


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_first_order_step_makes_a_task(steps: int) -> None:
    right, ratios = tasks(K, steps=steps)
    assert ratios == pytest.approx([1.0] * 3)
    assert (right.verdict, right.diagnosis) == (EQUIVALENT, ()), right.reason
    wrong, ratios = tasks(1, steps=steps)
    assert ratios == pytest.approx([K] * 3)
    assert [w.grad_norm_ratio for w in wrong.windows] == pytest.approx(ratios)
    assert (wrong.verdict, codes(wrong)) == (DEVIATES, ["GA101"])


@pytest.mark.parametrize("shared", ["inputs", "targets"])
def test_a_step_on_the_data_of_the_loss_itself_makes_none(shared: str) -> None:
    result, _ = tasks(K, shared=shared)
    assert result.verdict is not EQUIVALENT
    assert ("the very data" in result.reason) is (shared == "inputs")


SHARPNESS = """
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
own = dict(model.named_parameters())
def of(weights, x, y):
    return F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)
"""
MOVED = """
x, y = item
slopes = torch.autograd.grad(of(own, {first}, y), list(own.values()){graph})
norm = torch.stack([g.norm() for g in slopes]).norm()
loss = of({{name: w + 0.05 * g / norm for (name, w), g in zip(own.items(), slopes)}}, {second}, y)
"""


@pytest.mark.parametrize("graph", ["", ", create_graph=True"], ids=["first-order", "second-order"])
@pytest.mark.parametrize(("first", "second"), [("x", "x"), ("x.double()", "x.double()")], ids=["same", "cast"])
def test_a_sharpness_aware_step_is_none_of_a_task(graph: str, first: str, second: str, tmp_path: Path) -> None:
    """The large batch would step by the gradient of all of its rows."""
    kind = "torch.float32" if first != "x" else "torch.float64"
    data = f"data = [(torch.randn(8, 5, dtype={kind}), torch.randint(0, 2, (8,))) for _ in range(9)]"
    result = watched(tmp_path, SHARPNESS, data, MOVED.format(first=first, second=second, graph=graph))
    assert result.verdict is UNKNOWN, result.reason
    assert "the very data" in result.reason
