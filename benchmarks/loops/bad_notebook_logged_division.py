import torch
from tqdm.notebook import tqdm
from transformers import AutoModelForSequenceClassification, get_linear_schedule_with_warmup

EPOCHS, BS, ACC = 3, 8, 4
model = AutoModelForSequenceClassification.from_pretrained("roberta-base", num_labels=2).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
scheduler = get_linear_schedule_with_warmup(optimizer, 100, EPOCHS * len(train_dl) // ACC)
scaler = torch.cuda.amp.GradScaler()

history = []
for epoch in range(EPOCHS):
    model.train()
    progress = tqdm(enumerate(train_dl), total=len(train_dl))
    for i, batch in progress:
        batch = {k: v.cuda() for k, v in batch.items()}
        with torch.cuda.amp.autocast():
            loss = model(**batch).loss
        scaler.scale(loss).backward()  # error: [missing-loss-scaling]
        history.append(loss.item() / ACC)
        if i % ACC == ACC - 1 or i == len(train_dl) - 1:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()
        progress.set_description(f"{history[-1]:.3f}")
