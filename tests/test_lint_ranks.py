"""GA701 and GA702: which micro-batches average their gradients over the ranks."""

from __future__ import annotations

import pytest

from gradcheck_accum.lint import lint_source

HEAD = """\
import contextlib
import torch
from contextlib import nullcontext, ExitStack
from torch.nn.parallel import DistributedDataParallel as DDP

"""
LOOP = """\
def train(net, loader, optimizer, criterion, K, args, fabric, accelerator):
    model = {wrap}
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % K == 0
        {before}
        with {around}:
            out = model(x)
            {between}
            loss = criterion(out, y) / K
            with {around_backward}:
                loss.backward()
        if {boundary}:
            optimizer.step()
            optimizer.zero_grad()
"""


def codes(head: str = "", **places: str) -> list[str]:
    slots = {"wrap": "DDP(net)", "before": "pass", "between": "pass", "boundary": "last"}
    slots |= {"around": "nullcontext()", "around_backward": "nullcontext()"} | places
    source = HEAD + head + LOOP.format(**slots)
    return [f.mistake.code for f in lint_source(source, "train.py") if f.mistake.code.startswith("GA7")]


RIGHT = "nullcontext() if last else model.no_sync()"
INVERTED = "model.no_sync() if last else nullcontext()"


@pytest.mark.parametrize(
    "wrap", ["DDP(net)", "torch.nn.parallel.DistributedDataParallel(net, device_ids=[0])", "torch.compile(DDP(net))"]
)
def test_every_micro_batch_is_averaged(wrap: str) -> None:
    assert codes(wrap=wrap) == ["GA701"]


def test_wrapped_only_where_it_is_distributed() -> None:
    assert codes(wrap="DDP(net) if args.distributed else net") == ["GA701"]


def test_no_sync_around_backward_only_does_nothing() -> None:
    assert codes(around_backward=RIGHT) == ["GA701"]


@pytest.mark.parametrize(
    "around",
    [
        RIGHT,
        "(nullcontext if last else model.no_sync)()",
        "model.no_sync() if (i + 1) % K else contextlib.nullcontext()",
        "nullcontext() if (i + 1) % K == 0 else model.no_sync(), torch.autocast('cpu')",
    ],
)
def test_the_first_micro_batches_stay_local_and_the_last_does_not(around: str) -> None:
    assert codes(around=around) == []
    assert codes(around=around, wrap="net") == []


@pytest.mark.parametrize("around", [INVERTED, "model.no_sync()", "model.no_sync() if i % K else nullcontext()"])
def test_the_last_micro_batch_stays_local(around: str) -> None:
    assert codes(around=around) == ["GA702"]
    assert codes(around=around, wrap="net") == ["GA702"]


def test_a_last_window_that_is_shorter_stays_local() -> None:
    assert codes(around=RIGHT, boundary="last or i + 1 == len(loader)") == ["GA702"]
    truth = "nullcontext() if last or i + 1 == len(loader) else model.no_sync()"
    assert codes(around=truth, boundary="last or i + 1 == len(loader)") == []


def test_where_backward_may_decide_both_must_agree() -> None:
    assert codes(around_backward=INVERTED, wrap="net") == []
    assert codes(around_backward="model.no_sync()", wrap="net") == []


@pytest.mark.parametrize(
    ("switch", "found"),
    [("last", []), ("not last", ["GA702"]), ("(i + 1) % K == 0", []), ("True", ["GA701"]), ("decide(i)", [])],
)
def test_the_switch_by_hand(switch: str, found: list[str]) -> None:
    assert codes(before=f"model.require_backward_grad_sync = {switch}") == found
    if found != ["GA701"]:
        assert codes(before=f"model.require_backward_grad_sync = {switch}", wrap="net") == found


def test_the_switch_after_forward_is_that_of_the_next_micro_batch() -> None:
    assert codes(between="model.require_backward_grad_sync = last") == ["GA702"]


@pytest.mark.parametrize(
    ("around", "found"),
    [
        ("fabric.no_backward_sync(model, enabled=not last)", []),
        ("fabric.no_backward_sync(model, enabled=last)", ["GA702"]),
        ("fabric.no_backward_sync(model)", ["GA702"]),
        ("accelerator.no_sync(model) if not last else nullcontext()", []),
        ("accelerator.no_sync(model) if last else nullcontext()", ["GA702"]),
        ("accelerator.accumulate(model)", []),
    ],
)
def test_the_contexts_of_frameworks(around: str, found: list[str]) -> None:
    assert codes(around=around, wrap="net") == found


HELPER = """\
@contextlib.contextmanager
def maybe_no_sync(model, sync):
    if sync:
        yield
    else:
        with model.no_sync():
            yield

"""


@pytest.mark.parametrize(
    ("head", "places"),
    [
        ("", {"wrap": "net"}),
        ("", {"wrap": "FSDP(net)"}),
        ("from apex.parallel import DistributedDataParallel as DDP\n", {}),
        ("", {"wrap": "accelerator.prepare(net)"}),
        ("", {"around": "local_gradients(model, last)"}),
        ("", {"around": "model.join()"}),
        (HELPER, {"around": "maybe_no_sync(model, last)"}),
        ("", {"around": "ExitStack() as stack", "before": "context = model.no_sync() if not last else nullcontext()"}),
        ("", {"boundary": "True"}),
        ("", {"between": "out = net.head(x)"}),
    ],
)
def test_what_is_unknown_or_not_distributed_is_no_finding(head: str, places: dict[str, str]) -> None:
    assert codes(head, **places) == []


def test_the_message_names_the_loop() -> None:
    source = HEAD + LOOP.format(
        wrap="DDP(net)",
        before="pass",
        around=RIGHT,
        between="pass",
        around_backward="nullcontext()",
        boundary="last or i + 1 == len(loader)",
    )
    (finding,) = [f for f in lint_source(source, "train.py") if f.mistake.code == "GA702"]
    lines = source.splitlines()
    assert lines[finding.where.line - 1].strip() == "loss.backward()"
    step = next(number for number, text in enumerate(lines, 1) if "optimizer.step" in text)
    assert f"the step at line {step}" in finding.message


KARPATHY = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = make_model()
if ddp:
    model = DDP(model, device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(max_steps):
    optimizer.zero_grad()
    for micro_step in range(steps):
        x, y = loader.next_batch()
        {before}
        logits, loss = model(x, y)
        loss = loss / steps
        {after}
        loss.backward()
    optimizer.step()
"""
SWITCH = "model.require_backward_grad_sync = (micro_step == steps - 1)"


def test_a_switch_between_forward_and_backward_in_a_loop_of_micro_steps() -> None:
    late = lint_source(KARPATHY.format(before="pass", after=f"if ddp: {SWITCH}"), "train.py")
    assert [f.mistake.code for f in late] == ["GA702"]
    assert lint_source(KARPATHY.format(before=f"if ddp: {SWITCH}", after="pass"), "train.py") == []
