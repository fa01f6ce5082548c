import torch
import torch.nn.functional as F


def step_on(model, optimizer, micro_batches, pad_id, clip):
    n_tokens = sum((mb["labels"] != pad_id).sum() for mb in micro_batches)
    for mb in micro_batches:
        logits = model(mb["input_ids"]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), mb["labels"].flatten(), ignore_index=pad_id, reduction="sum")
        (loss / n_tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def train(model, loader, args):
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    pending = []
    for batch in loader:
        pending.append(batch)
        if len(pending) == args.accum:
            step_on(model, optimizer, pending, args.pad, args.clip)
            pending = []
    if pending:
        step_on(model, optimizer, pending, args.pad, args.clip)
