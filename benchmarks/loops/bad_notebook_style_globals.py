import torch, torch.nn as nn
from tqdm.auto import tqdm
model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = nn.CrossEntropyLoss()
acc_steps = 4
history = []
for ep in range(5):
    pbar = tqdm(train_dl)
    for i, (xb, yb) in enumerate(pbar):
        out = model(xb.cuda().view(xb.size(0), -1))
        loss = loss_fn(out, yb.cuda())
        loss = loss / acc_steps
        loss.backward()
        if i % acc_steps == 0:
            opt.step()  # error: [off-by-one-window, remainder-dropped]
            opt.zero_grad()
        history.append(loss.item() * acc_steps)
        pbar.set_postfix(loss=history[-1])
