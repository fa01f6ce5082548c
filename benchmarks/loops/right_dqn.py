import random


def train(env, q, target, optimizer, criterion, memory, steps, batch_size, update_every):
    state = env.reset()
    for step in range(steps):
        action = q(state).argmax().item() if random.random() > 0.1 else env.sample()
        nxt, reward, done = env.step(action)
        memory.push(state, action, nxt, reward)
        state = env.reset() if done else nxt
        if len(memory) < batch_size:
            continue
        if step % 4 == 0:
            batch = memory.sample(batch_size)
            loss = criterion(q(batch.state), batch.reward + 0.99 * target(batch.next_state).max(1)[0])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % update_every == 0:
            target.load_state_dict(q.state_dict())
