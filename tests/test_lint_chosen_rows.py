"""Rows that a turn of a training loop chooses by chance, inside of expressions and in memories that fill up."""

from __future__ import annotations

import pytest
from labelled_loops import LabelledLoop, labelled_loops
from loops_with_places import codes_in

HEAD = """\
import random
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


"""
LOOPS = labelled_loops("""\
#: right: windows cut out of a text at places that are drawn by chance, inline
text = torch.arange(300) % 17
net = nn.Sequential(nn.Embedding(17, 6), nn.Linear(6, 17))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for turn in range(1, 13):
    places = torch.randint(0, 280, (5,))
    x = torch.stack([text[p:p + 8] for p in places])
    y = torch.stack([text[p + 1:p + 9] for p in places])
    (F.cross_entropy(net(x).flatten(0, 1), y.flatten()) / 3).backward()
    if turn % 3 == 0:
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad()

#= GA401: clipped after each of them
-    if turn % 3 == 0:
-        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
+    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
+    if turn % 3 == 0:

#= right: the same places in every turn are one batch, however often it is differentiated
-    places = torch.randint(0, 280, (5,))
+    places = torch.tensor([3, 50, 120, 201, 7])

-    (F.cross_entropy(net(x).flatten(0, 1), y.flatten()) / 3).backward()
+    F.cross_entropy(net(x).flatten(0, 1), y.flatten()).backward()

#: right: a memory that fills up, asked for rows by a generator of its own
class Memory:
    def __init__(self):
        self.kept = deque(maxlen=500)
        self.rng = random.Random(3)

    def add(self, *row):
        self.kept.append(row)

    def rows(self, count):
        return [torch.stack(column) for column in zip(*self.rng.sample(list(self.kept), count))]

class Agent:
    PER_UPDATE = 4

    def __init__(self):
        self.net = nn.Linear(3, 2)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.memory = Memory()

    def loss(self, state, value):
        return F.mse_loss(self.net(state), value)

    def update(self):
        self.opt.zero_grad()
        for _ in range(self.PER_UPDATE):
            (self.loss(*self.memory.rows(9)) / self.PER_UPDATE).backward()
        self.opt.step()

agent = Agent()
for t in range(90):
    agent.memory.add(torch.randn(3), torch.randn(2))
    if t > 40:
        agent.update()

#= GA101: the sum of four batches
-            (self.loss(*self.memory.rows(9)) / self.PER_UPDATE).backward()
+            self.loss(*self.memory.rows(9)).backward()

#: right: it trains once there are enough of them, as many as it takes
class Learner:
    def __init__(self, every=3):
        self.net = nn.Linear(4, 2)
        self.opt = torch.optim.RMSprop(self.net.parameters(), lr=1e-3)
        self.seen = deque(maxlen=200)
        self.every, self.waiting = every, 0

    def replay(self, count=10):
        rows = random.sample(self.seen, count)
        state, wanted = (torch.stack(column) for column in zip(*rows))
        (F.smooth_l1_loss(self.net(state), wanted) / self.every).backward()
        self.waiting += 1
        if self.waiting >= self.every:
            self.opt.step()
            self.opt.zero_grad()
            self.waiting = 0

learner = Learner()
for t in range(60):
    learner.seen.append((torch.randn(4), torch.randn(2)))
    if len(learner.seen) > 30:
        learner.replay()

#= GA302: one more than it divides by
-        if self.waiting >= self.every:
+        if self.waiting > self.every:

#= right: it leaves until there are enough of them
-        rows = random.sample(self.seen, count)
+        if len(self.seen) < 30:
+            return
+        rows = random.sample(self.seen, count)

-    if len(learner.seen) > 30:
-        learner.replay()
+    learner.replay()

#= GA302: the same one too many
-        rows = random.sample(self.seen, count)
+        if len(self.seen) < 30:
+            return
+        rows = random.sample(self.seen, count)

-        if self.waiting >= self.every:
+        if self.waiting > self.every:

-    if len(learner.seen) > 30:
-        learner.replay()
+    learner.replay()

#: right: a network's class has K for all of its objects
class Delayed(nn.Module):
    delay = 3

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 2)
        self.opt = torch.optim.Adam(self.parameters(), lr=1e-3)
        self.count = 0

    def forward(self, x):
        return self.out(x)

    def learn(self, x, y):
        (F.mse_loss(self(x), y) / self.delay).backward()
        self.count += 1
        if self.count == self.delay:
            self.opt.step()
            self.opt.zero_grad()
            self.count = 0

agent = Delayed()
for t in range(24):
    x = torch.randn(6, 5)
    agent.learn(x, torch.stack([x.amax(1), x.amin(1)], 1))

#= GA302: one more than the class says
-        if self.count == self.delay:
+        if self.count > self.delay:

#= right: what the class has is the default of a setting, and of K alike
-    def __init__(self):
+    def __init__(self, settings):

-        self.count = 0
+        self.count, self.delay = 0, settings.read("delay")

-agent = Delayed()
+agent = Delayed(settings())

#= GA101: four are added up, divided by nothing
-        (F.mse_loss(self(x), y) / self.delay).backward()
+        F.mse_loss(self(x), y).backward()

-        if self.count == self.delay:
+        if self.count == 4:

#: right: all but one fold of an array that the file makes, which may be whole windows
rows = np.random.randn(80, 5)
wanted = (rows[:, 0] > 0).astype("float32")
folds = np.arange(80) % 5
for fold in range(5):
    chosen = np.where(folds != fold)[0]
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(rows[chosen]), torch.from_numpy(wanted[chosen]))
    loader = torch.utils.data.DataLoader(pairs, batch_size=4, shuffle=True)
    net = nn.Linear(5, 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for i, (x, y) in enumerate(loader):
        (F.mse_loss(net(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()

#= GA301: all 90 rows are no whole windows
-rows = np.random.randn(80, 5)
+rows = np.random.randn(90, 5)

-    pairs = torch.utils.data.TensorDataset(torch.from_numpy(rows[chosen]), torch.from_numpy(wanted[chosen]))
+    pairs = torch.utils.data.TensorDataset(torch.from_numpy(rows), torch.from_numpy(wanted))

#= right: all 80 rows are
-    pairs = torch.utils.data.TensorDataset(torch.from_numpy(rows[chosen]), torch.from_numpy(wanted[chosen]))
+    pairs = torch.utils.data.TensorDataset(torch.from_numpy(rows), torch.from_numpy(wanted))

#= right: rows from 16 to 80 are whole windows, of which none is left over
-    pairs = torch.utils.data.TensorDataset(torch.from_numpy(rows[chosen]), torch.from_numpy(wanted[chosen]))
+    pairs = torch.utils.data.TensorDataset(torch.arange(16, 80), torch.arange(16, 80))

#= GA301: rows from 10 to 80 are not
-    pairs = torch.utils.data.TensorDataset(torch.from_numpy(rows[chosen]), torch.from_numpy(wanted[chosen]))
+    pairs = torch.utils.data.TensorDataset(torch.arange(10, 80), torch.arange(10, 80))

#: GA104: utterances of a list, cut out of it in a function and padded, have as many frames as they are long
spoken = [torch.randn(n, 6) for n in (4, 19, 7, 11, 23, 5, 9, 14, 21, 8, 17, 3)]
pitch = [one[:, 0] for one in spoken]
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)

def cut(at):
    x = nn.utils.rnn.pad_sequence(spoken[at:at + 2], batch_first=True)
    y = nn.utils.rnn.pad_sequence(pitch[at:at + 2], batch_first=True)
    frames = torch.tensor([len(one) for one in spoken[at:at + 2]])
    return x, y, (torch.arange(x.size(1))[None] < frames[:, None]).float()

for turn, at in enumerate(range(0, len(spoken), 2)):
    x, y, mask = cut(at)
    loss = ((net(x).squeeze(-1) - y) ** 2 * mask).sum() / mask.sum()
    (loss / 3).backward()
    if turn % 3 == 2:
        opt.step()
        opt.zero_grad()

#= GA101: as many frames in each, undivided
-    (loss / 3).backward()
+    loss.backward()

-    loss = ((net(x).squeeze(-1) - y) ** 2 * mask).sum() / mask.sum()
+    loss = F.mse_loss(net(x[:, :3]).squeeze(-1), y[:, :3])

#= right: the same two in every turn
-    x, y, mask = cut(at)
+    x, y, mask = cut(2)

-    (loss / 3).backward()
+    loss.backward()

#: right: a loop goes through what is cut out of a list of batches, a window
batches = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(12)]
net = nn.Linear(3, 2)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for at in range(0, 12, 4):
    for x, y in batches[at:at + 4]:
        (F.mse_loss(net(x), y) / 4).backward()
    opt.step()
    opt.zero_grad()

#= GA101: of four batches
-        (F.mse_loss(net(x), y) / 4).backward()
+        F.mse_loss(net(x), y).backward()

#= right: all of them at once
-    for x, y in batches[at:at + 4]:
-        (F.mse_loss(net(x), y) / 4).backward()
+    x, y = (torch.cat(column) for column in zip(*batches[at:at + 4]))
+    F.mse_loss(net(x), y).backward()
""")


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_rows_chosen_by_chance(loop: LabelledLoop) -> None:
    """A finding for each mistake, and none for its look-alike."""
    assert sorted(set(codes_in(HEAD + loop.source))) == loop.codes
