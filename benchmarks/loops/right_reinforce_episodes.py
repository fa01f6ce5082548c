def train(policy, env, optimizer, episodes, batch):
    for episode in range(episodes):
        log_probs, rewards = env.rollout(policy)
        loss = -(log_probs * rewards).sum() / batch
        loss.backward()
        if (episode + 1) % batch == 0:
            optimizer.step()
            optimizer.zero_grad()
