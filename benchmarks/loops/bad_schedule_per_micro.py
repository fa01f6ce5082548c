import torch
from transformers import get_cosine_schedule_with_warmup


def train(model, loader, args):
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    updates_per_epoch = len(loader) // args.accum
    scheduler = get_cosine_schedule_with_warmup(optimizer, 100, updates_per_epoch * args.epochs)
    for epoch in range(args.epochs):
        for step, batch in enumerate(loader):
            if step >= updates_per_epoch * args.accum:
                break
            loss = model(**batch).loss
            (loss / args.accum).backward()
            if (step + 1) % args.accum == 0:
                optimizer.step()
                optimizer.zero_grad()
            scheduler.step()  # error: [scheduler-every-batch]
