import torch


def update(policy, rollouts, epochs, minibatches, accum, clip_eps):
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    for _ in range(epochs):
        for batch in rollouts.iterate(minibatches):
            optimizer.zero_grad()
            for micro in batch.split(accum):
                ratio = (policy.log_prob(micro.obs, micro.act) - micro.old).exp()
                surrogate = torch.min(ratio * micro.adv, ratio.clamp(1 - clip_eps, 1 + clip_eps) * micro.adv)
                loss = -surrogate.sum() / len(batch)
                loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
