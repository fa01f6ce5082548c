import torch


def train(encoder, data, optimizer, loss_fn, chunks, steps):
    for _ in range(steps):
        batch = next(data)
        pieces = batch.chunk(chunks)
        with torch.no_grad():
            reps = [encoder(p) for p in pieces]
        reps = [r.detach().requires_grad_() for r in reps]
        loss_fn(torch.cat(reps)).backward()
        grads = [r.grad for r in reps]
        optimizer.zero_grad()
        for piece, grad in zip(pieces, grads):
            surrogate = (encoder(piece) * grad).sum()
            surrogate.backward()
        optimizer.step()
