import torch


def finetune(model, loader, total_updates, accumulation=4):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    iterator = iter(loader)
    updates = micro = 0
    running = []
    while updates < total_updates:
        try:
            batch = next(iterator)
        except StopIteration:
            iterator = iter(loader)
            batch = next(iterator)
        loss = model(**batch).loss
        loss.div(accumulation).backward()
        running.append(loss.item())
        micro += 1
        if micro < accumulation:
            continue
        micro = 0
        optimizer.step()
        optimizer.zero_grad()
        updates += 1
        if updates % 100 == 0:
            print(sum(running) / len(running))
            running.clear()
