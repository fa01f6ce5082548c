import torch


def update(actor, critic, buffer, epochs, n_minibatches):
    actor_opt = torch.optim.Adam(actor.parameters(), lr=3e-4)
    critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for _ in range(epochs):
        for batch in buffer.minibatches(n_minibatches):
            ratio = actor(batch.obs, batch.act).exp()
            actor_loss = -(ratio * batch.adv).mean()
            actor_opt.zero_grad()
            actor_loss.backward()
            actor_opt.step()
            critic_loss = ((critic(batch.obs) - batch.ret) ** 2).mean()
            critic_opt.zero_grad()
            critic_loss.backward()
            critic_opt.step()
