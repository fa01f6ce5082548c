import torch


def finetune(model, loader, total_updates, accumulation=4, lr=1e-4):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    it = iter(loader)
    updates = 0
    micro = 0
    optimizer.zero_grad()
    while updates < total_updates:
        try:
            batch = next(it)
        except StopIteration:
            it = iter(loader)
            batch = next(it)
        loss = model(**batch).loss
        loss.backward()  # error: [missing-loss-scaling]
        micro += 1
        if micro == accumulation:
            optimizer.step()
            optimizer.zero_grad()
            micro = 0
            updates += 1
