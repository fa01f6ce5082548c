import torch
import torch.nn.functional as F
from tqdm import tqdm

EPOCHS = 40
ACCUM_GRAD = 6
DEVICE = torch.device("cuda")

model = build_unet().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)

for epoch in range(1, EPOCHS + 1):
    model.train()
    epoch_loss, n_train = 0.0, 0
    optimizer.zero_grad(set_to_none=True)
    for step, (x, y, mask) in enumerate(tqdm(train_loader, leave=False)):
        x, y, mask = x.to(DEVICE), y.to(DEVICE), mask.to(DEVICE)
        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
            pred = model(x, class_labels=x.new_zeros(len(x)).long()).sample
        raw_loss = F.mse_loss(torch.lerp(zero_norm, pred.float(), mask), y)
        (raw_loss / ACCUM_GRAD).backward()
        if (step + 1) % ACCUM_GRAD == 0 or (step + 1) == len(train_loader):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()  # error: [remainder-misscaled]
            optimizer.zero_grad(set_to_none=True)
        epoch_loss += raw_loss.item() * x.shape[0]
        n_train += x.shape[0]
    print(epoch, epoch_loss / max(1, n_train))
