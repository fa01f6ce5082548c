"""Large batches of data whose rows are not all along the first dimension, or whose sizes the loop has written down.

Each window's gradient is compared, in float64, with one batch that is put together here by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

SEGMENTS = """
import torch
from torch import nn
F = nn.functional
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
LANES, STEPS, SEGMENTS, LAYERS = 5, 3, 4, {layers}
words, rnn, out = nn.Embedding(7, 4), nn.{kind}(4, 6, LAYERS, batch_first=True), nn.Linear(6, 7)
model = nn.ModuleList([words, rnn, out])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
text = torch.randint(0, 7, (3, LANES, STEPS * SEGMENTS + 1))
def loss_of(x, y, state):
    found, state = rnn(words(x), state)
    {and_more}
    return F.cross_entropy(out(found).reshape(-1, 7), y.reshape(-1)), state
for page in text:
    state, begun = {start}, []
    parts = [(page[:, t:t + STEPS], page[:, t + 1:t + 1 + STEPS]) for t in range(0, STEPS * SEGMENTS, STEPS)]
    for x, y in parts:
        state = tuple(s.detach() for s in state) if type(state) is tuple else state.detach()
        begun.append(state)
        loss, state = loss_of(x, y, state)
        (loss{scale}).backward()
    if {checked}:
        of_all = tuple(torch.cat(s, 1) for s in zip(*begun)) if type(state) is tuple else torch.cat(begun, 1)
        large, _ = loss_of(*(torch.cat(one) for one in zip(*parts)), of_all)
        expected = torch.autograd.grad(large, [*model.parameters()])
        torch.testing.assert_close([p.grad for p in model.parameters()], list(expected))
    optimizer.step()
    optimizer.zero_grad()
"""
LSTM = {"kind": "LSTM", "start": "(torch.zeros(LAYERS, LANES, 6), torch.zeros(LAYERS, LANES, 6))"}
GRU = {"kind": "GRU", "start": "torch.zeros(LAYERS, LANES, 6)"}


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [LSTM, GRU], ids=["LSTM", "GRU"])
def test_states_of_recurrent_layers_have_the_batch_second(kind: dict[str, str], layers: int, tmp_path: Path) -> None:
    source = SEGMENTS.replace("{layers}", str(layers))
    right = watch_source(source.format(**kind, and_more="pass", scale=" / SEGMENTS", checked=True), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    wrong = watch_source(source.format(**kind, and_more="pass", scale="", checked=False), tmp_path)
    assert (wrong.verdict, [d.mistake.code for d in wrong.diagnosis]) == (Verdict.DEVIATES, ["GA101"]), wrong.reason
    assert [w.grad_norm_ratio for w in wrong.windows] == pytest.approx([4.0] * 3)


def test_lanes_that_are_compared_with_each_other_are_no_large_batch(tmp_path: Path) -> None:
    source = SEGMENTS.replace("{layers}", "1")
    result = watch_source(
        source.format(**LSTM, and_more="found = found - found.mean(0)", scale=" / SEGMENTS", checked=False), tmp_path
    )
    assert result.verdict in (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, Verdict.INCONCLUSIVE), result.reason


PROMPT = """
import torch
from torch import nn
F = nn.functional
torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
body = nn.Sequential(nn.Linear(6, 9), nn.Tanh()).requires_grad_(False)
prompt, head = nn.Parameter(0.1 * torch.randn(2, 6)), nn.Linear(9, 3)
weights = [prompt, *head.parameters()]
optimizer = torch.optim.SGD(weights, lr=0.1)
x, y = torch.randn(33, 4, 6), torch.randint(0, 3, (33,))
def scores(x):
    rows = len(x)
    found = head(body(torch.cat([{prefix}, x], dim=1)).mean(1))
    return found{and_more}
for of_window in (slice(0, 12), slice(12, 24), slice(24, 33)):
    X, Y = x[of_window], y[of_window]
    for own, labels in zip(X.split({rows}), Y.split({rows})):
        (F.cross_entropy(scores(own), labels, reduction="sum"){scale}).backward()
    if {checked}:
        expected = torch.autograd.grad(F.cross_entropy(scores(X), Y), weights)
        torch.testing.assert_close([p.grad for p in weights], list(expected))
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("rows", [3, 5], ids=["equal", "unequal"])
@pytest.mark.parametrize(
    "prefix", ["prompt.expand(rows, -1, -1)", "prompt.repeat(rows, 1, 1)", "prompt.expand([rows, 2, 6])"]
)
def test_a_learned_prompt_is_expanded_to_all_rows_of_a_large_batch(prefix: str, rows: int, tmp_path: Path) -> None:
    parts = {"prefix": prefix, "and_more": "", "rows": rows}
    right = watch_source(PROMPT.format(**parts, scale=" / len(X)", checked=True), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    wrong = watch_source(PROMPT.format(**parts, scale=" / len(own)", checked=False), tmp_path)
    assert wrong.verdict is Verdict.DEVIATES, wrong.reason


@pytest.mark.parametrize("rows", [3, 5])
@pytest.mark.parametrize("and_more", [" - found.mean(0)", " * found.view(rows, 3).softmax(0)"])
def test_a_prompted_model_that_mixes_its_rows_is_no_large_batch(and_more: str, rows: int, tmp_path: Path) -> None:
    parts = {"prefix": "prompt.expand(rows, -1, -1)", "and_more": and_more, "rows": rows}
    result = watch_source(PROMPT.format(**parts, scale=" / len(X)", checked=False), tmp_path)
    assert result.verdict in (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, Verdict.INCONCLUSIVE), result.reason


TIME_FIRST = """
import torch
from torch import nn
torch.manual_seed(4)
K, STEPS, LANES = 2, 7, 5
rnn, out = nn.GRU(3, 4), nn.Linear(4, 3)
optimizer = torch.optim.SGD([*rnn.parameters(), *out.parameters()], lr=0.1)
series = torch.randn(STEPS * K * 3 + 1, LANES, 3)
state = None
for i in range(K * 3):
    x, y = series[i * STEPS:(i + 1) * STEPS], series[i * STEPS + 1:(i + 1) * STEPS + 1]
    found, state = rnn(x, state)
    state, found = state.detach(), out(found)
    {and_more}
    ((found - y).pow(2).mean(){scale}).backward()
    if i % K == K - 1:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("and_more", "scale", "verdict", "codes"),
    [
        ("pass", " / K", Verdict.EQUIVALENT, []),
        ("pass", "", Verdict.DEVIATES, ["GA101"]),
        ("found = found - found.mean(1, keepdim=True)", " / K", Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, ["GA901"]),
    ],
)
def test_steps_of_a_first_segment_without_a_state_are_no_samples(
    and_more: str, scale: str, verdict: Verdict, codes: list[str], tmp_path: Path
) -> None:
    result = watch_source(TIME_FIRST.format(and_more=and_more, scale=scale), tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (verdict, codes), result.reason
