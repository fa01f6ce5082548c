import torch
import torch.nn as nn


def update(agent, optimizer, storage, args):
    b_inds = torch.randperm(args.batch_size)
    for epoch in range(args.update_epochs):
        for start in range(0, args.batch_size, args.minibatch_size):
            mb = b_inds[start : start + args.minibatch_size]
            optimizer.zero_grad()
            for micro in range(args.accumulation):
                inds = mb[micro :: args.accumulation]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(storage.obs[inds], storage.actions[inds])
                ratio = (newlogprob - storage.logprobs[inds]).exp()
                adv = storage.advantages[inds]
                pg_loss = torch.max(-adv * ratio, -adv * torch.clamp(ratio, 0.8, 1.2)).mean()
                v_loss = 0.5 * ((newvalue.view(-1) - storage.returns[inds]) ** 2).mean()
                loss = pg_loss - args.ent_coef * entropy.mean() + args.vf_coef * v_loss
                (loss / args.accumulation).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
