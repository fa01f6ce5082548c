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


SCRIPT = """\
import torch
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from elsewhere import options, objective, prepared, Adjusted

def schedule(optimizer, args):
    if args.schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
    if args.schedule == "step":
        return torch.optim.lr_scheduler.StepLR(optimizer, 9)
    raise ValueError(args.schedule)

def train(rank, args, loader):
    {setup}
    net = torch.nn.Linear(5, 3)
    if args.resume:
        restore(args)
    if args.quick:
        args.epochs = 1
    optimizer = torch.optim.AdamW(net.parameters())
    scheduler = schedule(optimizer, args)
    {wrap}
    optimizer.zero_grad()
    for epoch in range(args.epochs):
        for i, (x, y) in enumerate(loader):
            {run}
            (loss / args.window).backward()
            if (i + 1) % args.window == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
                {each}

if __name__ == "__main__":
    args = options()
    {start}
"""
USUAL = {
    "setup": "pass",
    "wrap": "if args.rank != -1: net = DDP(net)",
    "run": "loss = torch.nn.functional.mse_loss(net(x), y)",
    "each": "pass",
    "start": "train(0, args, data(args))",
}


def of_ranks(**places: str) -> list[str]:
    found = lint_source(SCRIPT.format(**(USUAL | places)), "train.py")
    return [f.message.partition(", gradients")[0] for f in found if f.mistake.code == "GA701"]


@pytest.mark.parametrize(
    ("wrap", "condition"),
    [
        ("if args.rank != -1: net = DDP(net)", "when args.rank != -1"),
        ("if args.rank == -1: pass\n    else: net = DDP(net)", "when args.rank != -1"),
        ("if not args.alone: net = DDP(net)", "when not args.alone"),
        ("if args.ranks > 1: net = DDP(net)", "when args.ranks > 1"),
        (
            "if args.wide: net = torch.nn.DataParallel(net)\n    elif args.ranks: net = DDP(net)",
            "when not args.wide and args.ranks",
        ),
        ("net = DDP(net) if args.rank is not None else net", "when args.rank is not None"),
        ("net = DDP(net)", ""),
    ],
)
def test_a_setting_that_the_program_offers_is_named(wrap: str, condition: str) -> None:
    (said,) = of_ranks(wrap=wrap)
    assert said == condition or (not condition and not said.startswith("when"))


def test_the_setting_has_been_asked_for_before() -> None:
    assert of_ranks(setup="device = 'cpu' if args.rank == -1 else 'cuda'") == ["when args.rank != -1"]


def test_a_program_that_refuses_the_setting_is_right() -> None:
    refusal = "if args.rank != -1 and args.window > 1: raise ValueError('one or the other')"
    assert of_ranks(setup=refusal) == []
    assert of_ranks(setup="assert args.rank == -1") == []


@pytest.mark.parametrize(
    "start", ["mp.spawn(train, nprocs=2, args=(args, data(args)))", "mp.spawn(train, (args, data(args)))"]
)
def test_a_function_that_is_started_in_processes_is_called(start: str) -> None:
    assert len(of_ranks(start=start)) == 1
    either = f"if args.ranks > 1:\n        {start}\n    else:\n        train(0, args, data(args))"
    assert len(of_ranks(start=either, wrap="if args.ranks > 1: net = DDP(net)")) == 1


def test_a_function_elsewhere_runs_the_model_that_it_is_given() -> None:
    assert len(of_ranks(run="loss = objective(net, x, y)")) == 1


@pytest.mark.parametrize(
    "places",
    [
        {"run": "loss = objective(net.module, x, y)"},
        {"run": "loss = net.module(x).mean()", "each": "average = prepared(net)"},
        {"run": "with objective(net):\n                loss = net(x).mean()"},
        {"run": "loss = objective(net, x, y)", "each": "pause = net.no_sync()"},
    ],
)
def test_what_a_function_elsewhere_may_leave_local_is_no_finding(places: dict[str, str]) -> None:
    assert of_ranks(**places) == []


def test_names_that_are_chosen_by_returning_are_refused_at_the_end() -> None:
    choose = """\
def make{n}(name{n}):
    if name{n} == "one":
        return one{n}()
    if name{n} == "two":
        return two{n}()
    raise ValueError(name{n})

"""
    makers = "".join(choose.format(n=n) for n in range(6))
    made = "; ".join(f"part{n} = make{n}(args.name{n})" for n in range(6))
    source = makers + SCRIPT.format(**(USUAL | {"setup": made})).replace("/ args.window)", "* 1)")
    assert "GA101" in [f.mistake.code for f in lint_source(source, "train.py")]


PARTS = """\
class Training:
    def __init__(self, cfg, model, optimizer: torch.optim.Optimizer):
        self.cfg, self.model, self.optimizer = cfg, model, optimizer

    def cut(self, batch):
        if len(batch) <= self.cfg.rows:
            return [batch]
        pieces = {}
        for key, value in batch.items():
            pieces[key] = value.split(self.cfg.rows, dim=0)
        return [{key: value[i] for key, value in pieces.items()} for i in range(len(pieces["ids"]))]

    def fit(self, loader):
        for batch in loader:
            self.optimizer.zero_grad()
            parts = self.cut(batch)
            number = len(parts)
            for i, part in enumerate(parts):
                context = nullcontext
                if self.cfg.strategy == "ddp":
                    if CONDITION:
                        context = self.model.no_sync
                with context():
                    loss = self.model(part["ids"]).sum() / batch["ids"].numel()
                    loss.backward()
            self.optimizer.step()
"""


@pytest.mark.parametrize(
    ("condition", "expected"), [("i != number - 1", []), ("i < number - 1", []), ("self.cfg.is_local", ["GA702"])]
)
def test_turns_told_apart_by_a_number_that_is_not_shown(condition: str, expected: list[str]) -> None:
    findings = lint_source(HEAD + PARTS.replace("CONDITION", condition), "train.py")
    assert [f.mistake.code for f in findings if f.mistake.code.startswith("GA7")] == expected
