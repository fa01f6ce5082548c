"""Runs on every rank of one torchrun: small loops whose weights fully_shard (FSDP2) spreads over the ranks.

What is right is computed separately on whole weights: the large batch of a step is the micro-batches of all ranks,
and its gradient in float64 is that of the summed loss over its units.
"""

from __future__ import annotations

import copy
import gc
import json
import math
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
    CLASSES,
    FEATURES,
    Batch,
    K,
    data,
    divided_by_k,
    leave,
    loop,
    mean,
    perceptron,
    share_of_all_tokens,
    sum_over_all_tokens,
    tokens,
    unscaled,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.judge.run import judge_ranks
from gradcheck_accum.verify.ranks.rank_report import RankReport
from gradcheck_accum.verify.session import observe

NONE = torch.empty(0, dtype=torch.float64)
NOT_WITH_GLOO = "Cannot use ReduceOp.AVG with Gloo"
"""What older PyTorch (2.7, say) raises where fully_shard averages over several meshes."""
LIMIT = 0.5
"""Less than the norms of all of clipped_unscaled's gradients, and more than those of some of the large batches'."""

Model = Callable[[], nn.Module]
Optimizer = Callable[..., torch.optim.Optimizer]


class Own(torch.optim.SGD):
    """An unknown optimizer: whether it treats the elements of a weight separately is not known."""


@dataclass
class Run:
    """One loop on one rank: its model, its data, and of every step the whole weights and gradient, and its batches."""

    model: nn.Module
    data: list[Batch]
    make: Optimizer
    steps: list[tuple[list[torch.Tensor], torch.Tensor, range]] = field(default_factory=list)
    norms: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = self.make(self.model.parameters())

    def windows(self) -> list[list[Batch]]:
        return [self.data[i : i + K] for i in range(0, len(self.data), K)]

    def sync(self, last: bool) -> None:
        self.model.set_requires_gradient_sync(last)

    def synced(self, window: list[Batch]) -> Iterator[Batch]:
        """The micro-batches of a window, of which the last alone is averaged over the ranks."""
        for batch in window:
            self.sync(batch is window[-1])
            yield batch

    def note(self, held: range | None = None) -> None:
        first = K * len(self.steps)
        weights, gradients = [], []
        for parameter in self.model.parameters():
            whole = full(parameter)
            weights.append(whole.clone())
            # A rank may hold nothing of a gradient that another holds a part of.
            gradients.append(torch.zeros_like(whole) if parameter.grad is None else full(parameter.grad))
        used = torch.cat([g.reshape(-1).double() for g in gradients])
        self.steps.append((weights, used, held or range(first, min(first + K, len(self.data)))))

    def step(self, *, noted: bool = False, held: range | None = None) -> None:
        if not noted:
            self.note(held)
        self.optimizer.step()
        self.optimizer.zero_grad()


def full(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def scaled_by_hand(run: Run) -> None:
    for window in run.windows():
        for x, y in run.synced(window):
            cross_entropy(run.model(x), y).backward()
        torch._foreach_div_([p.grad for p in run.model.parameters()], len(window))
        run.step()


def clipped(run: Run) -> None:
    for window in run.windows():
        for x, y in run.synced(window):
            mean(run.model(x), y, window).backward()
        run.note()
        run.norms.append(nn.utils.clip_grad_norm_(run.model.parameters(), 0.1).full_tensor())
        run.step(noted=True)


def clipped_unscaled(run: Run) -> None:
    for window in run.windows():
        for x, y in run.synced(window):
            cross_entropy(run.model(x), y).backward()
        run.note()
        nn.utils.clip_grad_norm_(run.model.parameters(), LIMIT)
        run.step(noted=True)


def with_a_grad_scaler(run: Run) -> None:
    scaler = torch.amp.GradScaler("cpu")
    for window in run.windows():
        for x, y in run.synced(window):
            scaler.scale(mean(run.model(x), y, window)).backward()
        scaler.unscale_(run.optimizer)
        run.note()
        nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
        scaler.step(run.optimizer)
        scaler.update()
        run.optimizer.zero_grad()


def clipped_by_value(run: Run) -> None:
    for window in run.windows():
        for x, y in run.synced(window):
            mean(run.model(x), y, window).backward()
        run.note()
        nn.utils.clip_grad_value_(run.model.parameters(), 0.01)
        run.step(noted=True)


def clipped_early(run: Run) -> None:
    for window in run.windows():
        for x, y in window:
            (cross_entropy(run.model(x), y) / K).backward()
            if x is window[-1][0]:
                run.note()
            nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
        run.step(noted=True)


def one_shard_scaled_after_the_clip(run: Run) -> None:
    for window in run.windows():
        for x, y in run.synced(window):
            mean(run.model(x), y, window).backward()
        nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
        if dist.get_rank() == 1:
            next(run.model.parameters()).grad.to_local().mul_(2.0)
        run.step()


def synced_every_time(run: Run) -> None:
    for window in run.windows():
        for x, y in window:
            (cross_entropy(run.model(x), y) / K).backward()
        run.step()


def zeroed_every_time(run: Run) -> None:
    for window in run.windows():
        for x, y in window:
            run.optimizer.zero_grad()
            (cross_entropy(run.model(x), y) / K).backward()
        run.step()


def zeroed_while_it_waits(run: Run) -> None:
    for window in run.windows():
        for j, (x, y) in enumerate(window):
            run.optimizer.zero_grad()
            run.sync(j == len(window) - 1)
            (cross_entropy(run.model(x), y) / K).backward()
        run.step()


def clipped_while_it_waits(run: Run) -> None:
    for window in run.windows():
        for x, y in run.synced(window):
            (cross_entropy(run.model(x), y) / K).backward()
            if x is window[-1][0]:
                run.note()
            nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
        run.step(noted=True)


def remainder_dropped(run: Run) -> None:
    for i, (x, y) in enumerate(run.data):
        (cross_entropy(run.model(x), y) / K).backward()
        if (i + 1) % K == 0:
            run.step()


def remainder_waits_for_the_next_pass(run: Run) -> None:
    """Two passes over five batches: what waits at the end of the first is not cleared at the start of the second."""
    for i, (x, y) in enumerate(run.data):
        if i % 5 == 0:
            run.optimizer.zero_grad()
        last = i % 5 in (1, 3)
        run.sync(last)
        (cross_entropy(run.model(x), y) / K).backward()
        if last:
            run.step(held=range(i - 2 if i == 6 else i - 1, i + 1))


def never_synced(run: Run) -> None:
    for window in run.windows():
        for x, y in window:
            run.sync(False)
            (cross_entropy(run.model(x), y) / K).backward()
        run.step()


def last_one_local(run: Run) -> None:
    for window in run.windows():
        for j, (x, y) in enumerate(window):
            run.sync(j == 0)
            (cross_entropy(run.model(x), y) / K).backward()
        run.step()


def kept_gathered(run: Run) -> None:
    """Weights stay whole between the micro-batches of a window, and FSDP2 knows which backward is the last."""
    for window in run.windows():
        for j, (x, y) in enumerate(window):
            last = j == len(window) - 1
            run.sync(last)
            run.model.set_reshard_after_backward(last)
            run.model.set_is_last_backward(last)
            mean(run.model(x), y, window).backward()
        run.step()


def changed_by_hand(run: Run) -> None:
    for window in run.windows():
        for x, y in run.synced(window):
            mean(run.model(x), y, window).backward()
        if dist.get_rank() == 1:
            next(run.model.parameters()).grad.to_local()[0] += 1.0
        run.step()


def divide_by(run: Run, first: float, others: float) -> None:
    """Have the ranks' sums divided by other factors than the number of ranks."""
    sharded = [module for module in run.model.modules() if hasattr(module, "set_gradient_divide_factor")]
    for number, module in enumerate(sharded):
        # The last has weights of its own, and so have others; the model around them all has none.
        module.set_gradient_divide_factor(first if number == len(sharded) - 1 else others)
        # gloo has no average with a factor of one's own.
        module.set_force_sum_reduction_for_comms(True)


def summed_over_ranks(run: Run) -> None:
    divide_by(run, 1.0, 1.0)
    loop(run)


def sum_over_all_tokens_summed_over_ranks(run: Run) -> None:
    divide_by(run, 1.0, 1.0)
    loop(run, share_of_all_tokens(run.windows()))


def divided_unevenly(run: Run) -> None:
    divide_by(run, 2.0, 1.0)
    loop(run)


def hooked(run: Run) -> None:
    for module in run.model.modules():
        if hasattr(module, "set_all_reduce_hook"):
            module.set_all_reduce_hook(lambda gradients: None)
    loop(run)


def local(run: Run) -> None:
    """No sharded module synchronizes here: the loop of what is not fully_shard's."""
    for window in run.windows():
        for x, y in window:
            (cross_entropy(run.model(x), y) / K).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Checkpointed(nn.Module):
    """A block that is run again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh()), nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=False))


class Scaled(nn.Module):
    """With a weight of one element: of two ranks, one holds nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.scale = perceptron(), nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x) * self.scale


STEEPEST, ADAM_W = partial(torch.optim.SGD, lr=0.1), partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1)

Wrap = Callable[[nn.Module], nn.Module]


def every_layer(**options: Any) -> Wrap:
    def wrap(model: nn.Module) -> nn.Module:
        for module in model:
            if list(module.parameters()):
                fully_shard(module, **options)
        return fully_shard(model, **options)

    return wrap


def whole(model: nn.Module) -> nn.Module:
    return fully_shard(model)


def mixed(reduce: torch.dtype | None) -> Wrap:
    return every_layer(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce))


def columns(model: nn.Module) -> nn.Module:
    return every_layer(shard_placement_fn=lambda p: Shard(p.ndim - 1) if p.shape[-1] % 2 == 0 else None)(model)


def replicated(model: nn.Module) -> nn.Module:
    return every_layer(mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")))(model)


def first_layer_alone(model: nn.Module) -> nn.Module:
    fully_shard(model[0])
    return model


class ByHand(nn.Module):
    """Sharded, but not by FSDP2: nothing gathers its weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.mesh = init_device_mesh("cpu", (2,))
        self.model = model
        for module in model:
            for name, parameter in list(module.named_parameters(recurse=False)):
                shard = distribute_tensor(parameter.data, self.mesh, [Shard(0)])
                module.register_parameter(name, nn.Parameter(shard))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(distribute_tensor(x, self.mesh, [Replicate()])).full_tensor()


def flattened(**options: bool) -> Wrap:
    return lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)


@dataclass(frozen=True)
class Case:
    loop: Callable[[Run], None]
    model: Model = perceptron
    wrap: Wrap = field(default_factory=every_layer)
    ragged: bool = False
    batches: int = 6
    optimizer: Optimizer = STEEPEST
    limit: float = math.inf
    options: dict[str, str] = field(default_factory=lambda: {"reference": "ledger"})


CASES = {
    "right": Case(loop),
    "right, replay asked for": Case(loop, options={}),
    "right, but the replay alone will do": Case(loop, options={"reference": "replay"}),
    "right, with a remainder": Case(loop, batches=5),
    "right, of more weights than a sketch": Case(loop, lambda: perceptron(400)),
    "unscaled, of more weights than a sketch": Case(unscaled, lambda: perceptron(400)),
    "zeroed every time, of more weights than a sketch": Case(zeroed_every_time, lambda: perceptron(400)),
    "right, in float64": Case(loop, lambda: perceptron().double()),
    "right, computed in bfloat16": Case(loop, wrap=mixed(torch.float32)),
    "right, computed and averaged in bfloat16": Case(loop, wrap=mixed(None)),
    "right, in one piece": Case(loop, wrap=whole),
    "right, kept whole after forward": Case(loop, wrap=every_layer(reshard_after_forward=False)),
    "right, kept whole until the last backward": Case(kept_gathered),
    "right, sharded by columns": Case(loop, wrap=columns),
    "right, with tied weights": Case(loop, Tied, whole),
    "right, with a weight of one element": Case(loop, Scaled, whole),
    "unscaled, with a weight of one element": Case(unscaled, Scaled, whole),
    "right, with checkpoints": Case(loop, Checkpointed, whole),
    "right, clipped": Case(clipped),
    "right, clipped by value": Case(clipped_by_value),
    "right, with a grad scaler": Case(with_a_grad_scaler),
    "right, scaled by hand": Case(scaled_by_hand),
    "sum over all tokens": Case(sum_over_all_tokens, ragged=True),
    "zeroed while it waits": Case(zeroed_while_it_waits),
    "clipped while it waits": Case(clipped_while_it_waits),
    "batch normalisation": Case(
        loop, lambda: nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES)), options={}
    ),
    "unscaled": Case(unscaled),
    "unscaled, with AdamW": Case(unscaled, optimizer=ADAM_W),
    "unscaled and clipped, with AdamW": Case(clipped_unscaled, optimizer=ADAM_W, limit=LIMIT),
    "unscaled, with momentum": Case(unscaled, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
    "unscaled, with an optimizer that nobody knows": Case(unscaled, optimizer=partial(Own, lr=0.1)),
    "remainder divided by K, with AdamW": Case(divided_by_k, batches=5, optimizer=ADAM_W),
    "zeroed every time": Case(zeroed_every_time),
    "clipped early": Case(clipped_early),
    "remainder dropped": Case(remainder_dropped, batches=5),
    "remainder waits for the next pass": Case(remainder_waits_for_the_next_pass, batches=10),
    "remainder divided by K": Case(divided_by_k, batches=5),
    "unequal tokens": Case(loop, ragged=True),
    "synced every time": Case(synced_every_time),
    "never synced": Case(never_synced),
    "last one local": Case(last_one_local),
    "one rank changes its shard": Case(changed_by_hand),
    "one rank scales its shard after the clip": Case(one_shard_scaled_after_the_clip),
    "summed over the ranks": Case(summed_over_ranks),
    "sum over all tokens, summed over the ranks": Case(sum_over_all_tokens_summed_over_ranks, ragged=True),
    "divided unevenly": Case(divided_unevenly),
    "with a hook of its own": Case(hooked),
    "replicated and sharded": Case(loop, wrap=replicated),
    "first layer alone": Case(local, wrap=first_layer_alone),
    "sharded by hand": Case(local, wrap=ByHand),
    "FSDP1": Case(local, wrap=flattened()),
    "FSDP1, replay asked for": Case(local, wrap=flattened(), options={}),
    "FSDP1, with its original parameters": Case(local, wrap=flattened(use_orig_params=True)),
    "FSDP1, with its original parameters, replay asked for": Case(
        local, wrap=flattened(use_orig_params=True), options={}
    ),
}


def measure(case: Case, rank: int, ranks: int) -> dict[str, Any]:
    """Run one case on this rank; what verify says, and what it should have measured."""
    torch.manual_seed(0)
    model = case.model()
    dtype = next(model.parameters()).dtype
    batches = [[(x.to(dtype), y) for x, y in data(r, case.batches, ragged=case.ragged)] for r in range(ranks)]
    run = Run(case.wrap(model), batches[rank], case.optimizer)
    with observe(script="case", **case.options) as observation:
        case.loop(run)
    accounts: list[Any] = [None] * ranks
    dist.all_gather_object(accounts, RankReport(observation.seen().portable(), observation.options, "").written())
    result = judge_ranks([RankReport.read(account).seen for account in accounts], "case", observation.options)
    steps = [(w, used, [own[i] for own in batches for i in held]) for w, used, held in run.steps]
    return {
        "verdict": result.verdict.value,
        "reason": result.reason,
        "codes": sorted({d.mistake.code for d in result.diagnosis}),
        "lines": {d.mistake.code: line(d.where) for d in result.diagnosis},
        "messages": [d.message for d in result.diagnosis],
        "notes": list(result.notes),
        "reference": result.reference.kind,
        "dtype": result.reference.dtype,
        "measured": [[w.grad_rel_error, w.grad_norm_ratio] for w in result.windows],
        "tolerance": [w.tolerance for w in result.windows],
        "weights": [list(w.weights) for w in result.windows],
        "units": [w.units for w in result.windows],
        "micro_batches": [w.micro_batches for w in result.windows],
        "truth": [compared(used, weights, case.model, batch) for weights, used, batch in steps],
        "updates": [w.param_rel_error for w in result.windows],
        "true_updates": true_updates(case, steps),
        "norms": [float(norm) for norm in run.norms],
        "true_norms": [float(used.norm()) for _, used, _ in run.steps],
    }


def line(where: Location) -> str:
    return Path(where.path).read_text(encoding="utf-8").splitlines()[where.line - 1].strip()


def compared(used: torch.Tensor, weights: list[torch.Tensor], model: Model, batch: list[Batch]) -> list[float]:
    """|g - g_ref| / |g_ref| and |g| / |g_ref|, g_ref the gradient of the mean over all units."""
    reference = large_batch(weights, model, batch)
    return [float((used - reference).norm() / reference.norm()), float(used.norm() / reference.norm())]


def true_updates(case: Case, steps: list[tuple[list[torch.Tensor], torch.Tensor, list[Batch]]]) -> list[float]:
    """|Δw - Δw_ref| / |Δw_ref| of every step, by an optimizer of one flat weight in float64."""

    def clipped(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * min(1.0, case.limit / (float(gradient.norm()) + 1e-6))

    errors = []
    flat = nn.Parameter(torch.cat([w.reshape(-1).double() for weights, _, _ in steps[:1] for w in weights] or [NONE]))
    optimizer = case.optimizer([flat])
    for weights, used, batch in steps:
        with torch.no_grad():
            flat.copy_(torch.cat([w.reshape(-1).double() for w in weights]))
        before = flat.detach().clone()
        state = copy.deepcopy(optimizer.state_dict())
        moved = []
        for gradient in (large_batch(weights, case.model, batch), used):
            optimizer.load_state_dict(copy.deepcopy(state))
            with torch.no_grad():
                flat.copy_(before)
            flat.grad = clipped(gradient)
            optimizer.step()
            moved.append(flat.detach() - before)
        errors.append(float((moved[1] - moved[0]).norm() / moved[0].norm()))
    return errors


def large_batch(weights: list[torch.Tensor], model: Model, batch: list[Batch]) -> torch.Tensor:
    """The gradient of the mean over all units, at these weights, flat and in float64."""
    exact = model().double()
    with torch.no_grad():
        for parameter, weight in zip(exact.parameters(), weights, strict=True):
            parameter.copy_(weight)
    loss = torch.stack([cross_entropy(exact(x.double()), y, reduction="sum") for x, y in batch]).sum()
    gradients = torch.autograd.grad(loss / tokens(batch), list(exact.parameters()))
    return torch.cat([g.reshape(-1) for g in gradients])


def undisturbed(rank: int) -> bool:
    """Whether watched runs end with the very weights of a plain one, on this rank."""
    ends = []
    for options in (None, {}, {"reference": "ledger"}, {"trajectory": True}):
        torch.manual_seed(0)
        model = every_layer()(perceptron())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        with nullcontext() if options is None else observe(**options):
            for i, (x, y) in enumerate(data(rank, 8)):
                model.set_requires_gradient_sync((i + 1) % K == 0)
                (cross_entropy(model(x), y) / K).backward()
                if (i + 1) % K == 0:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    optimizer.step()
                    optimizer.zero_grad()
        ends.append([p.to_local().detach().clone() for p in model.parameters()])
    return all(torch.equal(a, b) for end in ends for a, b in zip(end, ends[0], strict=True))


def main() -> None:
    # Each case looks for optimizers among all objects: what has been imported holds none.
    gc.freeze()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    results: dict[str, Any] = {}
    for name, case in CASES.items():
        try:
            results[name] = measure(case, rank, ranks)
        except Exception as error:
            if NOT_WITH_GLOO not in str(error):
                print(f"case: {name}", file=sys.stderr)
                raise
            results[name] = {"unable": str(error)}
    same = [None] * ranks
    dist.all_gather_object(same, undisturbed(rank))
    results["undisturbed"] = same
    if rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
    leave()


if __name__ == "__main__":
    # One thread for each rank: they share the machine with other tests.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    main()
