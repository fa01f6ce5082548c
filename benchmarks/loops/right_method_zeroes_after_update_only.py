import torch


class Agent:
    def __init__(self, q, lr, update_every):
        self.q = q
        self.optimizer = torch.optim.Adam(q.parameters(), lr=lr)
        self.update_every = update_every
        self.t = 0

    def observe(self, transition):
        self.memory.push(transition)
        self.t += 1
        if self.t % self.update_every == 0:
            s, a, r, s2 = self.memory.sample()
            loss = torch.nn.functional.smooth_l1_loss(self.q(s).gather(1, a), r + self.q(s2).max(1)[0].detach())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
