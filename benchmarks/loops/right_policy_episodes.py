import torch


def finish_episode(policy, optimizer, episodes):
    for episode in episodes:
        returns = torch.tensor(episode.rewards)
        loss = []
        for log_prob, R in zip(episode.log_probs, returns):
            loss.append(-log_prob * R)
        optimizer.zero_grad()
        loss = torch.stack(loss).sum()
        loss.backward()
        optimizer.step()
