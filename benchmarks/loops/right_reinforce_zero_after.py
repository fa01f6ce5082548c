import torch


class Agent:
    def __init__(self, policy, lr=1e-3, episodes_per_update=10):
        self.policy = policy
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=lr)
        self.episodes_per_update = episodes_per_update

    def train(self, env, updates):
        for update in range(updates):
            for _ in range(self.episodes_per_update):
                log_probs, rewards = self.rollout(env)
                loss = -(log_probs * rewards).mean() / self.episodes_per_update
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
