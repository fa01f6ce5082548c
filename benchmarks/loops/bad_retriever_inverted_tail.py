import torch
import torch.nn.functional as F


def run_epoch(encoder, batches, optimizer, scheduler, K, temperature):
    encoder.train()
    bar = list(batches)
    for i, (queries, docs) in enumerate(bar, start=1):
        q, d = encoder(queries), encoder(docs)
        scores = q @ d.T / temperature
        loss = F.cross_entropy(scores, torch.arange(len(q), device=q.device)) / K
        loss.backward()
        if i % K and i != len(bar):
            continue
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 2.0)
        optimizer.step()  # error: [remainder-misscaled]
        scheduler.step()
        optimizer.zero_grad()
