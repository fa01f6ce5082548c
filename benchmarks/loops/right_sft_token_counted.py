import torch
import torch.nn.functional as F


def sft(model, optimizer, loader, k, epochs, device):
    for _ in range(epochs):
        it = iter(loader)
        done = False
        while not done:
            window = []
            for _ in range(k):
                batch = next(it, None)
                if batch is None:
                    done = True
                    break
                window.append(batch)
            if not window:
                break
            tokens = sum((b["labels"] != -100).sum() for b in window)
            for b in window:
                logits = model(b["input_ids"].to(device)).logits
                loss = F.cross_entropy(
                    logits[:, :-1].flatten(0, 1), b["labels"][:, 1:].flatten().to(device), reduction="sum"
                )
                (loss / tokens).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
