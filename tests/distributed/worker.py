"""Runs on every rank of one torchrun: many small loops, each watched, collected on rank 0 and written as JSON.

What is right is computed here separately: the large batch of a step is the micro-batches of all ranks, and its
gradient in float64 is that of the summed loss over its units.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks_data import (
    FEATURES,
    Batch,
    K,
    data,
    divided_by_k,
    everywhere,
    leave,
    loop,
    perceptron,
    share_of_all_tokens,
    sum_over_all_tokens,
    tokens,
    unscaled,
)
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gradcheck_accum.verify.judge.run import judge_ranks
from gradcheck_accum.verify.ranks.rank_report import RankReport
from gradcheck_accum.verify.session import observe


@dataclass
class Run:
    """One loop on one rank: its model, its data, and what its steps used."""

    model: DistributedDataParallel
    data: list[Batch]
    steps: list[tuple[nn.Module, torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def windows(self, size: int = K) -> list[list[Batch]]:
        return [self.data[i : i + size] for i in range(0, len(self.data), size)]

    def step(self) -> None:
        used = torch.cat([p.grad.reshape(-1).double() for p in self.model.parameters() if p.grad is not None])
        self.steps.append((copy.deepcopy(self.model.module), used))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def paused(self, pause: bool) -> Any:
        return self.model.no_sync() if pause else nullcontext()

    def synced(self, window: list[Batch]) -> Iterator[Batch]:
        """The micro-batches of a window, of which the last alone is averaged over the ranks."""
        for batch in window:
            with self.paused(batch is not window[-1]):
                yield batch


def sum_over_one_ranks_part_of_all_tokens(run: Run) -> None:
    parts = {id(w[0][0]): everywhere(tokens(w)) / dist.get_world_size() for w in run.windows()}
    loop(run, lambda out, y, window: cross_entropy(out, y, reduction="sum") / parts[id(window[0][0])])


def sum_over_all_tokens_averaged_once_more(run: Run) -> None:
    loop(run, share_of_all_tokens(run.windows()))


def sum_over_own_tokens(run: Run) -> None:
    loop(run, lambda out, y, window: cross_entropy(out, y, reduction="sum") / tokens(window))


def gradients_scaled_by_all_tokens(run: Run) -> None:
    for window in run.windows():
        for x, y in run.synced(window):
            cross_entropy(run.model(x), y, reduction="sum").backward()
        total = everywhere(tokens(window))
        for parameter in run.model.parameters():
            parameter.grad *= dist.get_world_size() / total
        run.step()


def one_micro_batch_each(run: Run) -> None:
    for x, y in run.data:
        cross_entropy(run.model(x), y).backward()
        run.step()


def synced_every_time(run: Run) -> None:
    for window in run.windows():
        for x, y in window:
            (cross_entropy(run.model(x), y) / K).backward()
        run.step()


def paused_around_backward_alone(run: Run) -> None:
    for window in run.windows():
        for j, (x, y) in enumerate(window):
            loss = cross_entropy(run.model(x), y) / K
            with run.paused(j < len(window) - 1):
                loss.backward()
        run.step()


def never_synced(run: Run) -> None:
    for window in run.windows():
        for x, y in window:
            with run.paused(True):
                (cross_entropy(run.model(x), y) / K).backward()
        run.step()


def last_one_local(run: Run) -> None:
    for window in run.windows():
        for j, (x, y) in enumerate(window):
            with run.paused(j == len(window) - 1):
                (cross_entropy(run.model(x), y) / K).backward()
        run.step()


def clipped(run: Run) -> None:
    for window in run.windows():
        for x, y in run.synced(window):
            (cross_entropy(run.model(x), y) / K).backward()
        nn.utils.clip_grad_norm_(run.model.parameters(), 1e9)
        run.step()


def joined(run: Run) -> None:
    with run.model.join():
        for x, y in run.data:
            cross_entropy(run.model(x), y).backward()
            run.step()


def joined_over_those_that_are_left(run: Run) -> None:
    with run.model.join(divide_by_initial_world_size=False):
        for x, y in run.data:
            cross_entropy(run.model(x), y).backward()
            run.step()


def changed_by_hand_after_the_average(run: Run) -> None:
    for x, y in run.data:
        cross_entropy(run.model(x), y).backward()
        if dist.get_rank() == 1:
            next(run.model.parameters()).grad.data[0] += 1.0
        run.step()


class WithLoss(nn.Sequential):
    """A model that returns its own loss, as those of transformers do, and has a parameter that it never uses."""

    def __init__(self) -> None:
        super().__init__(*perceptron())
        self.unused = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        scores = super().forward(x)
        return scores if y is None else {"scores": scores, "loss": cross_entropy(scores, y)}


def right_with_its_own_loss(run: Run, divisor: float = K) -> None:
    for window in run.windows():
        for x, y in run.synced(window):
            (run.model(x, y)["loss"] / divisor).backward()
        run.step()


def unscaled_loss(run: Run) -> None:
    right_with_its_own_loss(run, 1.0)


def spread(run: Run, loop: Callable[[Run], None]) -> None:
    """The optimizer's state is spread over the ranks: each steps on some of the parameters, and sends them on."""
    parameters = run.model.parameters()
    run.optimizer = ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.SGD, lr=0.1)
    loop(run)


def hooked(run: Run, hook: Callable[..., Any]) -> None:
    """A communication hook of PyTorch's own makes the average."""
    run.model.register_comm_hook(None, hook)
    loop(run)


def undisturbed(rank: int) -> bool:
    """Whether a watched run ends with the very weights of a plain one, its model wrapped and wrapped again."""
    ends = []
    for options in (None, {}, {"dtype": "float64"}):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Dropout(0.2), perceptron())
        wrapped = DistributedDataParallel(model)
        outer = nn.Sequential(wrapped)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        with nullcontext() if options is None else observe(**options):
            for i, (x, y) in enumerate(data(rank, 8)):
                with nullcontext() if (i + 1) % K == 0 else wrapped.no_sync():
                    (cross_entropy(outer(x), y) / K).backward()
                if (i + 1) % K == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    return all(torch.equal(end, ends[0]) for end in ends)


@dataclass(frozen=True)
class Case:
    loop: Callable[[Run], None]
    model: Callable[[], nn.Module] = perceptron
    ragged: bool = False
    batches: tuple[int, int] = (6, 6)
    window: int = K
    options: dict[str, bool] = field(default_factory=dict)


CASES = {
    "right": Case(loop),
    "right, with a remainder": Case(loop, batches=(5, 5)),
    "right, of more weights than a sketch": Case(loop, lambda: perceptron(400)),
    "unscaled, of more weights than a sketch": Case(unscaled, lambda: perceptron(400)),
    "right, in float64": Case(loop, lambda: perceptron(400).double()),
    "right, with dropout": Case(loop, lambda: nn.Sequential(nn.Dropout(0.4), perceptron())),
    "right, clipped": Case(clipped),
    "right, one micro-batch each": Case(one_micro_batch_each, window=1),
    "batch normalisation": Case(loop, lambda: nn.Sequential(nn.BatchNorm1d(FEATURES), perceptron())),
    "unscaled": Case(unscaled),
    "remainder divided by K": Case(divided_by_k, batches=(5, 5)),
    "unequal tokens": Case(loop, ragged=True),
    "unequal tokens, one micro-batch each": Case(one_micro_batch_each, ragged=True, window=1),
    "sum over all tokens": Case(sum_over_all_tokens, ragged=True),
    "sum over a rank's part of all tokens": Case(sum_over_one_ranks_part_of_all_tokens, ragged=True),
    "sum over all tokens, averaged once more": Case(sum_over_all_tokens_averaged_once_more, ragged=True),
    "sum over own tokens": Case(sum_over_own_tokens, ragged=True),
    "gradients scaled by all tokens": Case(gradients_scaled_by_all_tokens, ragged=True),
    "right, with unused parameters": Case(right_with_its_own_loss, WithLoss, options={"find_unused_parameters": True}),
    "unscaled, with unused parameters": Case(unscaled_loss, WithLoss, options={"find_unused_parameters": True}),
    "right, in views of the buckets": Case(loop, options={"gradient_as_bucket_view": True}),
    "right, the optimizer spread": Case(partial(spread, loop=loop)),
    "unscaled, the optimizer spread": Case(partial(spread, loop=unscaled)),
    "averaged by a hook": Case(partial(hooked, hook=default_hooks.allreduce_hook)),
    "averaged by a hook, in float16": Case(partial(hooked, hook=default_hooks.fp16_compress_hook)),
    "synced every time": Case(synced_every_time),
    "paused around backward alone": Case(paused_around_backward_alone),
    "never synced": Case(never_synced),
    "last one local": Case(last_one_local),
    "joined": Case(joined, batches=(4, 2), window=1),
    "joined, over those that are left": Case(joined_over_those_that_are_left, batches=(4, 2), window=1),
    "one rank changes its gradient": Case(changed_by_hand_after_the_average, window=1),
}


def measure(case: Case, rank: int, ranks: int) -> dict[str, Any]:
    """Run one case on this rank; on rank 0 what verify says, and what it should have measured."""
    torch.manual_seed(0)
    model = case.model()
    dtype = next(model.parameters()).dtype
    batches = [[(x.to(dtype), y) for x, y in data(r, case.batches[r], ragged=case.ragged)] for r in range(ranks)]
    run = Run(DistributedDataParallel(model, **case.options), batches[rank])
    torch.manual_seed(rank)
    with observe(script="case") as observation:
        case.loop(run)
    accounts: list[Any] | None = [None] * ranks if rank == 0 else None
    dist.gather_object(RankReport(observation.seen().portable(), observation.options, "").written(), accounts)
    if accounts is None:
        return {}
    result = judge_ranks([RankReport.read(account).seen for account in accounts], "case", observation.options)
    windows = [[own[i : i + case.window] for i in range(0, len(own), case.window)] for own in batches]
    truth = [
        compared(used, model, [batch for own in windows if number < len(own) for batch in own[number]])
        for number, (model, used) in enumerate(run.steps)
    ]
    return {
        "verdict": result.verdict.value,
        "reason": result.reason,
        "codes": sorted({d.mistake.code for d in result.diagnosis}),
        "messages": [d.message for d in result.diagnosis],
        "notes": list(result.notes),
        "reference": result.reference.kind,
        "updates": [w.param_rel_error for w in result.windows],
        "measured": [[w.grad_rel_error, w.grad_norm_ratio] for w in result.windows],
        "weights": [list(w.weights) for w in result.windows],
        "units": [w.units for w in result.windows],
        "micro_batches": [w.micro_batches for w in result.windows],
        "truth": truth,
    }


def compared(used: torch.Tensor, model: nn.Module, batch: list[Batch]) -> list[float]:
    """|g - g_ref| / |g_ref| and |g| / |g_ref|, g_ref the gradient of the mean over all units, in float64."""
    exact = copy.deepcopy(model).double()
    loss = torch.stack([cross_entropy(exact(x.double()), y, reduction="sum") for x, y in batch]).sum()
    grads = torch.autograd.grad(loss / tokens(batch), list(exact.parameters()), allow_unused=True)
    reference = torch.cat([g.reshape(-1) for g in grads if g is not None])
    return [float((used - reference).norm() / reference.norm()), float(used.norm() / reference.norm())]


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    results = {name: measure(case, rank, ranks) for name, case in CASES.items()}
    results["undisturbed"] = undisturbed(rank)
    if rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
    leave()


if __name__ == "__main__":
    # One thread for each rank: they share the machine with other tests.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    main()
