import torch
import torch.nn as nn
class M(nn.Module):
    def forward(self, x, t=None):
        return x, x.mean()
model = M()
opt = torch.optim.AdamW([{'params': [p for p in model.parameters() if p.dim() >= 2]}], lr=1e-3)
gas = 5
data = torch.randint(0, 5, (4000,))
def get_batch(bs=4):
    ix = torch.randint(len(data) - 3, (bs,))
    return torch.stack([data[i:i+3] for i in ix]), torch.stack([data[i+1:i+4] for i in ix])
X, Y = get_batch()
it = 0
while True:
    for micro in range(gas):
        _, loss = model(X, Y)
        X, Y = get_batch()
        (loss / gas).backward()
    opt.step(); opt.zero_grad()
    it += 1
    if it > 4: break
