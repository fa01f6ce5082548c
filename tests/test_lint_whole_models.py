"""What happens to the gradients of a whole model, whoever owns its parameters, and by whatever it is multiplied."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

from gradcheck_accum.lint import lint_source

HEAD = """\
import argparse

import torch
from helpers import build, optimizers_of
from torch import nn

"""
LOOPS = labelled_loops("""\
#: GA301: two optimizers of unknown parts of the only model, which is cleared at the boundary and by every epoch
def main(args, loader, criterion):
    net = build(args)
    optimizer, optimizer_of_rest = optimizers_of(net)
    for epoch in range(args.epochs):
        net.zero_grad()
        for i, batch in enumerate(loader):
            loss = criterion(net(batch["x"]), batch["y"]) / args.accumulation_steps
            loss.backward()
            if (i + 1) % args.accumulation_steps == 0:
                optimizer.step()
                optimizer_of_rest.step()
                net.zero_grad()

#= right: a pass ends with a step
-            if (i + 1) % args.accumulation_steps == 0:
+            if (i + 1) % args.accumulation_steps == 0 or i + 1 == len(loader):

-            loss = criterion(net(batch["x"]), batch["y"]) / args.accumulation_steps
+            start = i - i % args.accumulation_steps
+            loss = criterion(net(batch["x"]), batch["y"]) / min(args.accumulation_steps, len(loader) - start)

#= right: another network is cleared, of which nobody knows what becomes
-                net.zero_grad()
+                judge.zero_grad()

-        net.zero_grad()
+        judge.zero_grad()

-    net = build(args)
+    net, judge = build(args)

#: GA301: rows of a part of the gradients are left out before the step, which loses no micro-batch
def main(args, net, loader, criterion):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    keep = torch.zeros((50, 1))
    keep[7] = 1
    for epoch in range(args.epochs):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            (criterion(net(x), y) / args.accumulation_steps).backward()
            if (i + 1) % args.accumulation_steps == 0:
                for weight in net.embedding.parameters():
                    weight.grad = weight.grad * keep
                optimizer.step()
                optimizer.zero_grad()

#= right: they are replaced by what was kept elsewhere
-                    weight.grad = weight.grad * keep
+                    weight.grad = kept[weight]

#: right: all gradients are divided by K once they are complete
def main(args, net, loader, criterion):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    assert len(loader) % args.accumulation_steps == 0
    for i, (x, y) in enumerate(loader):
        criterion(net(x), y).backward()
        if (i + 1) % args.accumulation_steps == 0:
            for weight in net.parameters():
                weight.grad = weight.grad / args.accumulation_steps
            optimizer.step()
            optimizer.zero_grad()

#= GA102: the losses are, too
-        criterion(net(x), y).backward()
+        (criterion(net(x), y) / args.accumulation_steps).backward()

#= right: by what nobody knows
-                weight.grad = weight.grad / args.accumulation_steps
+                weight.grad = weight.grad * args.of_each[weight]

#: right: an epoch is as long as a setting says, whatever else the loop counts by
def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps_per_epoch", type=int, default=2000)
    parser.add_argument("--accumulation_steps", type=int, default=4)
    parser.add_argument("--print_freq", type=int, default=10)
    return parser.parse_args()

def train(args, net, loader, criterion, optimizer):
    for i, (x, y) in enumerate(loader):
        (criterion(net(x), y) / args.accumulation_steps).backward()
        if (i + 1) % args.accumulation_steps == 0 or i == args.steps_per_epoch - 1:
            optimizer.step()
            optimizer.zero_grad()
        if i % args.print_freq == 0:
            print(i)

def main():
    args = parse()
    net = build(args)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.rate)
    for epoch in range(args.epochs):
        train(args, net, args.loader, nn.MSELoss(), optimizer)

main()

#= GA301: nothing but whole windows is used
-        if (i + 1) % args.accumulation_steps == 0 or i == args.steps_per_epoch - 1:
+        if (i + 1) % args.accumulation_steps == 0:

#: GA301: what decides on a step is compared with a number, and taken modulo nothing
def main(net, loader, criterion, optimizer):
    for epoch in range(3):
        waiting = 0
        for x, y in loader:
            (criterion(net(x), y) / 2).backward()
            waiting += 1
            if waiting == 2:
                optimizer.step()
                optimizer.zero_grad()
                waiting = 0

#= GA301: another number
-            (criterion(net(x), y) / 2).backward()
+            (criterion(net(x), y) / 3).backward()

-            if waiting == 2:
+            if waiting == 3:

#= right: each pass gives whole windows
-    for epoch in range(3):
+    assert len(loader) % 2 == 0
+    for epoch in range(3):
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_gradients_of_a_whole_model(loop: LabelledLoop) -> None:
    """A finding for each mistake, and none for its look-alike."""
    assert sorted(set(codes_in(HEAD + loop.source)) - {"GA103"}) == loop.codes


MOVED = """\
import torch
from transformers import AutoModel

near = AutoModel.from_pretrained("name").half().to("cuda")
far = AutoModel.from_pretrained("name")
data = torch.load("data")
rows = 4
K = len(data["ids"]) // rows
optimizer = torch.optim.Adam(far.parameters(), lr=1e-3)
for epoch in range(10):
    for a, b in zip(range(0, len(data["ids"]), rows), range(rows, len(data["ids"]) + 1, rows)):
        part = {key: one[a:b] for key, one in data.items()}
        loss = near(**part).loss / K
        loss.backward()
        if b % 64 == 0:
            for p, q in zip(near.parameters(), far.parameters()):
                MOVE
            near.zero_grad()
            optimizer.step()
            far.zero_grad()
"""


@pytest.mark.parametrize(
    ("move", "expected"), [("q.grad = p.grad.cpu().to(torch.float32)", []), ("q.grad = q.grad.clone()", ["GA202"])]
)
def test_gradients_moved_to_a_copy_of_the_model_may_be_cleared(move: str, expected: list[str]) -> None:
    source = MOVED.replace("MOVE", move)
    assert [f.mistake.code for f in lint_source(source, "train.py") if f.mistake.code.startswith("GA2")] == expected
