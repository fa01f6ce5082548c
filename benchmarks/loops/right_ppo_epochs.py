import torch


def ppo_update(policy, value, optimizer, rollouts, clip=0.2, epochs=4, minibatches=8):
    for _ in range(epochs):
        for mb in rollouts.iterate(minibatches):
            ratio = (policy.log_prob(mb.obs, mb.act) - mb.logp).exp()
            surrogate = torch.min(ratio * mb.adv, ratio.clamp(1 - clip, 1 + clip) * mb.adv).mean()
            v_loss = torch.nn.functional.mse_loss(value(mb.obs), mb.ret)
            loss = -surrogate + 0.5 * v_loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
