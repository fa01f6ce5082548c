import torch, torch.nn as nn
from tqdm.auto import tqdm
model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = nn.CrossEntropyLoss()
acc_steps = 4
n_full = len(train_dl) // acc_steps * acc_steps
history = []
for ep in range(5):
    pbar = tqdm(train_dl)
    for i, (xb, yb) in enumerate(pbar):
        if i == n_full:
            break
        out = model(xb.cuda().view(xb.size(0), -1))
        loss = loss_fn(out, yb.cuda())
        loss = loss / acc_steps
        loss.backward()
        if i % acc_steps == acc_steps - 1:
            opt.step()
            opt.zero_grad()
        history.append(loss.item() * acc_steps)
        pbar.set_postfix(loss=history[-1])
