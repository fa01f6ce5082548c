"""Losses of the turns of one episode, added up for one backward: no micro-batches, however many calls they take.

Where the actions of an episode are drawn from the policy's own output, one by one, the policy gradient is the sum over
its turns. Its twins add up losses of several batches, or of several episodes' means, which should be averaged.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

SETTING = """
import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical
from torch.nn import functional as F
torch.manual_seed(5)
TURNS = 6
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.act, self.value = nn.Linear(3, 8), nn.Linear(8, 2), nn.Linear(8, 1)
    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        return self.act(hidden), self.value(hidden)
net, other = Net(), Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
def follow(state, action):
    return torch.tensor([state[..., 1].mean().item(), float(action), 0.3 * len(str(state))]).sin()
def advantages(count):
    return torch.linspace(1.0, -0.7, count)
def step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
REINFORCE = """
for episode in range(4):
    state, chances = torch.randn(3), []
    for turn in range(TURNS + episode):
        policy = Categorical(logits=net(state)[0])
        action = policy.sample()
        chances.append(policy.log_prob(action))
        state = follow(state, action)
    step(torch.stack([-c * a for c, a in zip(chances, advantages(len(chances)))]).sum())
"""
ACTOR_CRITIC = """
for episode in range(4):
    state, losses = torch.randn(3), []
    gains = advantages(TURNS)
    for turn in range(TURNS):
        scores, value = net(state[None])
        policy = Categorical(scores.softmax(1))
        action = policy.sample()
        losses.append(-policy.log_prob(action) * gains[turn])
        losses.append(0.5 * F.mse_loss(value.squeeze(1), gains[turn : turn + 1]))
        losses.append(-0.01 * policy.entropy())
        state = follow(state, action)
    step(torch.cat([loss.reshape(1) for loss in losses]).sum())
"""
RUNNING_SUM = """
for episode in range(4):
    state, loss, gains = torch.randn(3), 0.0, advantages(TURNS)
    for turn in range(TURNS):
        policy = Bernoulli(logits=net(state)[1].squeeze())
        action = policy.sample()
        loss = loss - policy.log_prob(action) * gains[turn]
        state = follow(state, action)
    step(loss)
"""


@pytest.mark.parametrize("loop", [REINFORCE, ACTOR_CRITIC, RUNNING_SUM])
def test_the_turns_of_one_episode_are_one_batch(loop: str, tmp_path: Path) -> None:
    result = watch_source(SETTING + loop, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())


MEANS_OF_EPISODES = """
for update in range(3):
    episodes = []
    for episode in range(4):
        state, chances = torch.randn(3), []
        for turn in range(TURNS):
            policy = Categorical(logits=net(state)[0])
            action = policy.sample()
            chances.append(policy.log_prob(action))
            state = follow(state, action)
        episodes.append(torch.stack([-c * a for c, a in zip(chances, advantages(TURNS))]).mean())
    step(torch.stack(episodes).sum())
"""
EACH_ITS_OWN_BACKWARD = """
for update in range(3):
    optimizer.zero_grad()
    for episode in range(4):
        state, chances = torch.randn(3), []
        for turn in range(TURNS):
            policy = Categorical(logits=net(state)[0])
            action = policy.sample()
            chances.append(policy.log_prob(action))
            state = follow(state, action)
        torch.stack([-c * a for c, a in zip(chances, advantages(TURNS))]).sum().backward()
    optimizer.step()
"""
ONE_ROW_OF_A_LOADER = """
data = torch.utils.data.TensorDataset(torch.randn(24, 3), torch.rand(24))
losses = []
for x, gain in torch.utils.data.DataLoader(data, batch_size=1):
    scores, value = net(x)
    policy = Categorical(logits=scores)
    action = policy.sample()
    losses.append((-policy.log_prob(action) * gain + F.mse_loss(value.squeeze(1), gain)).squeeze())
    if len(losses) == 4:
        step(torch.stack(losses).sum())
        losses = []
"""
ROWS_AT_EACH_TURN = """
for update in range(3):
    losses = []
    for part in range(4):
        scores, value = net(torch.randn(5, 3))
        policy = Categorical(logits=scores)
        action = policy.sample()
        losses.append((-policy.log_prob(action) * advantages(5)).mean())
    step(sum(losses))
"""
LABELS_OF_A_TEACHER = """
for update in range(3):
    losses = []
    for part in range(4):
        x = torch.randn(3)
        policy = Categorical(logits=net(x)[0])
        label = Categorical(logits=other(x)[0]).sample()
        losses.append(-policy.log_prob(label) * advantages(4)[part])
    step(sum(losses))
"""
LABELS_DRAWN_BEFORE = """
for update in range(3):
    losses = []
    for part in range(4):
        x, label = torch.randn(3), torch.randint(2, ())
        losses.append(-Categorical(logits=net(x)[0]).log_prob(label))
    step(sum(losses))
"""


@pytest.mark.parametrize(
    "loop",
    [
        MEANS_OF_EPISODES,
        EACH_ITS_OWN_BACKWARD,
        ONE_ROW_OF_A_LOADER,
        ROWS_AT_EACH_TURN,
        LABELS_OF_A_TEACHER,
        LABELS_DRAWN_BEFORE,
        REINFORCE.replace(".sum())", ".sum() / 4)"),
    ],
)
def test_what_may_be_several_batches_stays_open(loop: str, tmp_path: Path) -> None:
    """One over their number is missing, or may be: a sum over them is not called right, nor wrong."""
    result = watch_source(SETTING + loop, tmp_path)
    assert result.verdict is not Verdict.EQUIVALENT
    assert result.diagnosis == ()
