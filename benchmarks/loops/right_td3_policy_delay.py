import torch


class TD3:
    def __init__(self, actor, critic, args):
        self.actor, self.critic = actor, critic
        self.actor_optimizer = torch.optim.Adam(actor.parameters())
        self.critic_optimizer = torch.optim.Adam(critic.parameters())
        self.total_it = 0
        self.policy_freq = args.policy_freq

    def train(self, replay_buffer, batch_size=256):
        self.total_it += 1
        state, action, target = replay_buffer.sample(batch_size)
        critic_loss = torch.nn.functional.mse_loss(self.critic(state, action), target)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        if self.total_it % self.policy_freq == 0:
            actor_loss = -self.critic(state, self.actor(state)).mean()
            self.actor_optimizer.zero_grad()
            actor_loss.backward()
            self.actor_optimizer.step()
