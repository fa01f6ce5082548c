import torch
import torch.nn as nn


class PPOTrainer:
    def __init__(self, policy, lr, micro_batches=4, max_grad_norm=0.5):
        self.policy = policy
        self.micro_batches = micro_batches
        self.max_grad_norm = max_grad_norm
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=lr)

    def surrogate(self, batch):
        logp, value, entropy = self.policy.evaluate(batch["obs"], batch["actions"])
        ratio = (logp - batch["logp"]).exp()
        clipped = ratio.clamp(0.8, 1.2)
        policy_loss = -torch.min(ratio * batch["adv"], clipped * batch["adv"]).mean()
        value_loss = nn.functional.mse_loss(value, batch["returns"])
        return policy_loss + 0.5 * value_loss - 0.01 * entropy.mean()

    def learn(self, rollouts, epochs=4):
        for _ in range(epochs):
            for minibatch in rollouts.minibatches():
                for part in minibatch.split(self.micro_batches):
                    self.optimizer.zero_grad()  # error: [zero-grad-every-batch]
                    loss = self.surrogate(part) / self.micro_batches
                    loss.backward()
                nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
                self.optimizer.step()
