"""Random programs and mutated training loops through `lint`, for a number of seconds: it must never fall over.

    python benchmarks/fuzz_lint.py --seconds 600 [--seed 0]

Two sources of programs: the loops and fixtures of this repository, with pieces dropped, doubled, swapped or taken from
one another; and programs that are composed of the statements that loops consist of. Whatever is no Python is
refused by `lint`; everything else is analyzed, and fixed where there is something to fix.
"""

from __future__ import annotations

import argparse
import ast
import copy
import random
import sys
import time
import traceback

from programs import peers, programs

from gradcheck_accum.lint import LintError, lint_source
from gradcheck_accum.lint.fixes import fix_source

_SLOW = 20.0
"""Seconds of one program beyond which it counts as a hang."""
_DEEPEST = 4

_EXPRESSIONS = (
    """\
i|K|i + 1|args.k|self.k|loss|loss / K|loss * (1 / K)|criterion(model(x), y)|model(x)|len(loader)|total|None|[]|{}|0|1
(i + 1) % K == 0|i % K|not i % K|i == len(loader) - 1|total % K == K - 1|scaler.scale(loss)|sum(losses)
torch.stack(losses)
loader|enumerate(loader)|enumerate(loader, 1)|range(K)|range(0, len(loader), K)|zip(loader, loader)
iter(loader)|next(batches)
islice(batches, K)|x.chunk(K)|x.split(2)|self.step(loss)|step(loss)|lambda: loss|(yield x)|step(loss)(x)()
[loss for x in loader]|x[i : i + K]
model.parameters()|torch.optim.SGD(model.parameters(), lr=0.1)|DataLoader(data, batch_size=K)
self.optimizers()|-K|K ** K|K // 0
Accelerator(gradient_accumulation_steps=K)|accelerator.sync_gradients|max(1, K)|int(K)|getattr(args, "k", 4)
partial(step, loss)
functools.partial(step)|*losses|await step|x @ x|x if K else y|(x := loss)|f"{loss}"|...|10 ** 300|1e308 * 10
float("nan")
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
_STATEMENTS = (
    """\
loss.backward()|optimizer.step()|optimizer.zero_grad()|model.zero_grad()|scaler.step(optimizer)|scaler.update()
scaler.unscale_(optimizer)|nn.utils.clip_grad_norm_(model.parameters(), 1.0)|self.manual_backward(loss)
fabric.backward(loss)
accelerator.backward(loss)|p.grad.div_(K)|p.grad = None|continue|break|return loss|raise ValueError
losses.append(loss)
losses.clear()|global total|total += 1|loss /= K|outputs.loss /= K|self.k = K|del loss|pass|assert loss
import torch|yield loss
engine.step()|scheduler.step()|step(loss)|self.step(loss)|trainer.train()|losses[0] = loss|optimizer = None|sys.exit()
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
_NAMES = [
    "i",
    "x",
    "y",
    "loss",
    "total",
    "K",
    "batches",
    "optimizer",
    "losses",
    "model",
    "p",
    "self.k",
    "(x, y)",
    "(i, x)",
]
_HEADS = (
    """\
if {e}|while {e}|for {n} in {e}|with {e}|with accelerator.accumulate(model)|with model.no_sync()|while True|try
def __call__(self, loss)
def step({a})|class Trainer(pl.LightningModule)|class Trainer|def training_step(self, batch, batch_idx)
async def go()|match {e}
""".replace("\n", "|")
    .strip("|")
    .split("|")
)


def _grow(rng: random.Random, depth: int) -> list[str]:
    lines: list[str] = []
    for _ in range(rng.randint(1, 5)):
        if depth < _DEEPEST and rng.random() < 0.4:
            head = rng.choice(_HEADS).format(
                e=rng.choice(_EXPRESSIONS), n=rng.choice(_NAMES), a=rng.choice(("loss", "self, loss", "*losses", ""))
            )
            body = ["    " + line for line in _grow(rng, depth + 1)]
            if head.startswith("match"):
                body = ["    case [1, *_]:", *("    " + line for line in body), "    case _:", "        pass"]
            lines += [head + ":", *body]
            if head == "try":
                lines += [rng.choice(("except StopIteration:", "except:")), "    pass"]
            elif head.startswith(("if", "for", "while")) and rng.random() < 0.3:
                lines += ["else:", *("    " + line for line in _grow(rng, depth + 1))]
        elif rng.random() < 0.4:
            lines.append(f"{rng.choice(_NAMES)} {rng.choice(('=', '=', '+=', '/=', '%='))} {rng.choice(_EXPRESSIONS)}")
        else:
            lines.append(rng.choice(_STATEMENTS))
    return lines


def random_program(rng: random.Random) -> str:
    """A program of statements that training loops consist of, in any order."""
    header = "import torch\nfrom accelerate import Accelerator\nfrom itertools import islice\nK = 4\n"
    return header + "\n".join([*_grow(rng, 0), "loss.backward()", "optimizer.step()"])


def mutated(program: ast.Module, pool: list[ast.AST], rng: random.Random) -> str:
    """A program with a few of its pieces dropped, doubled, swapped or replaced by pieces of others."""
    tree = copy.deepcopy(program)
    for _ in range(rng.randint(1, 6)):
        lists = [
            value
            for node in ast.walk(tree)
            for name in node._fields
            if isinstance(value := getattr(node, name, None), list) and value and isinstance(value[0], ast.AST)
        ]
        items = rng.choice(lists)
        here, there = rng.randrange(len(items)), rng.randrange(len(items))
        match rng.randrange(4):
            case 0:
                del items[here]
            case 1:
                items.insert(there, copy.deepcopy(items[here]))
            case 2:
                items[here], items[there] = items[there], items[here]
            case 3:
                kind = ast.stmt if isinstance(items[here], ast.stmt) else ast.expr
                items[here] = copy.deepcopy(next(n for n in rng.sample(pool, len(pool)) if isinstance(n, kind)))
    return ast.unparse(ast.fix_missing_locations(tree))


def crash_of(source: str) -> str:
    """How `lint` or its fixes fell over, or nothing."""
    begun = time.process_time()
    try:
        if lint_source(source, "train.py"):
            fix_source(source, "train.py", unsafe=True)
    except LintError:
        pass
    except Exception:
        return traceback.format_exc()
    spent = time.process_time() - begun
    return f"took {spent:.0f} s" if spent > _SLOW else ""


def main() -> int:
    """Run until time is up; prints every program that lint fell over, and returns 1 if there was one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    trees = [ast.parse(program) for program in [*programs("fixtures"), *peers().values()]]
    pool = [n for tree in rng.sample(trees, 30) for n in ast.walk(tree) if isinstance(n, (ast.stmt, ast.expr))]
    tried = crashes = 0
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        try:
            source = random_program(rng) if rng.random() < 0.5 else mutated(rng.choice(trees), pool, rng)
        except (ValueError, AttributeError, TypeError, IndexError, KeyError, RecursionError, StopIteration):
            continue  # the pieces do not fit together: not a program
        tried += 1
        crash = crash_of(source)
        if crash:
            crashes += 1
            print(f"--- program {tried} ---\n{source}\n{crash}")
    print(f"{tried} programs in {options.seconds:.0f} s, {crashes} crashes")
    return int(bool(crashes))


if __name__ == "__main__":
    sys.exit(main())
