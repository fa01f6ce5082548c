"""The true large batch of every shape in ``shapes_table``, written out by hand: one batch, one backward, one step.

A shape whose micro-batches are the rows of ``X`` and ``Y`` in order needs at most its objective as an expression over
the large batch ``x, y``; any other is a loop of its own, put after the lines that the shape's script begins with.
What a script draws while it trains is drawn here in the same order.
"""

from __future__ import annotations

from textwrap import dedent

from shapes_table import Shape

OBJECTIVE = "F.cross_entropy(model(x), y)"

_STEP = """\
optimizer.step()
    optimizer.zero_grad()"""

_LOOP = """
for x, y in zip(X.split(4 * K), Y.split(4 * K)):
    ({objective}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

_TWO_LOSSES = "F.cross_entropy(model(x), y) + 0.1 * model(x).pow(2).mean()"

OBJECTIVES = {
    "two-losses-added": _TWO_LOSSES,
    "two-losses-two-backwards": _TWO_LOSSES,
    "losses-in-a-list": _TWO_LOSSES,
    "weight-penalty": OBJECTIVE + " + 0.01 * sum((p ** 2).sum() for p in model.parameters())",
    "several-forwards": "F.mse_loss(model(x), model(x.flip(1)))",
    "label-smoothing": "F.cross_entropy(model(x), y, label_smoothing=0.1)",
    "learned-weights-of-losses": (
        "(-spread[0]).exp() * F.cross_entropy(model(x), y) + (-spread[1]).exp() * model(x).square().mean()"
        " + spread.sum()"
    ),
    "one-minus-a-mean": "1 - F.cosine_similarity(model(x), F.one_hot(y, 3).double()).mean()",
    "auxiliary-loss-in-an-attribute": "F.cross_entropy(model(x), y) + 0.1 * model.inner(x).square().mean()",
    "in-batch-negatives": (
        "F.cross_entropy(F.normalize(model(x)) @ F.normalize(model(x.flip(1))).T / 0.1, torch.arange(16))"
    ),
    "reentrant-shared-block": "F.cross_entropy(last(block(block(first(x)))), y)",
    "coefficient-of-one-over-k": (
        "F.cross_entropy(model(x), y) + 0.25 * model(x).pow(2).mean() - 0.01 * model(x).sigmoid().mean()"
    ),
}

_COUNTED_WINDOWS = """
for window in (batches[:4], batches[4:]):
    x, y = torch.cat([x for x, *_ in window]), torch.cat([y for _, y, *_ in window])
    {objective}.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

_SKIPPED_FIRST = """
F.cross_entropy(model(X[16:]), Y[16:]).backward()
optimizer.step()
"""

LOOPS = {
    "autocast-fp16-scaler": _LOOP.replace(
        "    optimizer.step", "    nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n    optimizer.step"
    ),
    "scaler-skips-a-step": _SKIPPED_FIRST,
    "fused-scaler-skips-a-step": _SKIPPED_FIRST,
    "clip-by-norm": _LOOP.replace(
        "    optimizer.step", "    nn.utils.clip_grad_norm_(model.parameters(), 0.05)\n    optimizer.step"
    ),
    "clip-by-value": _LOOP.replace(
        "    optimizer.step", "    nn.utils.clip_grad_value_(model.parameters(), 0.005)\n    optimizer.step"
    ),
    "clip-by-hand": _LOOP.replace(
        "    optimizer.step", "    nn.utils.clip_grad_value_(model.parameters(), 0.005)\n    optimizer.step"
    ),
    "lbfgs": """
        for x, y in zip(X.split(16), Y.split(16)):
            def closure():
                optimizer.zero_grad()
                loss = {objective}
                loss.backward()
                return loss
            optimizer.step(closure)
    """,
    "encoder-and-head": """
        for x, y in zip(X.split(16), Y.split(16)):
            F.cross_entropy(head(encoder(x).tanh()), y).backward()
            for one in optimizers:
                one.step()
                one.zero_grad()
    """,
    "gan": """
        for x, _ in loader:
            fake = G(torch.randn(4, 3))
            of_d.zero_grad()
            (bce(D(x), torch.ones(4, 1)) + bce(D(fake.detach()), torch.zeros(4, 1))).backward()
            of_d.step()
            of_g.zero_grad()
            bce(D(fake), torch.ones(4, 1)).backward()
            of_g.step()
    """,
    "sharpness-aware": """
        for x, y in zip(X.split(16), Y.split(16)):
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                moved = [p.grad / 20 for p in model.parameters()]
                torch._foreach_add_(list(model.parameters()), moved)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                torch._foreach_sub_(list(model.parameters()), moved)
            optimizer.step()
            optimizer.zero_grad()
    """,
    "shared-parameters": """
        for x, y in zip(X.split(16), Y.split(16)):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            other.step()
            optimizer.zero_grad()
    """,
    "offsets": """
        for batches in zip(*[iter(loader)] * 4):
            drawn = [torch.randint(0, 10, (20,)) for _ in batches]
            offsets = torch.cat([torch.tensor([0, 3, 9, 14]) + 20 * j for j in range(4)])
            F.cross_entropy(bag(torch.cat(drawn), offsets), torch.cat([y for _, y in batches])).backward()
            {step}
    """,
    "group-added-later": """
        for i, (x, y) in enumerate(zip(X.split(16), Y.split(16))):
            if i == 1:
                optimizer.add_param_group({"params": model[0].parameters()})
                model[0].zero_grad()
            F.cross_entropy(model(x), y).backward()
            {step}
    """,
    "tied-weights": """
        for batch in tokens.view(2, 16, 6):
            F.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:]).backward()
            {step}
    """,
    "sparse": """
        for batch, target in zip(tokens.view(2, 16), targets.view(2, 16)):
            F.cross_entropy(model(batch), target).backward()
            {step}
    """,
    "carried-state": """
        for i in (0, 4):
            starts = []
            for batch in data[i : i + 4]:
                starts.append(state)
                state = rnn(batch, state)[1].detach()
            states, _ = rnn(data[i : i + 4].flatten(0, 1), torch.cat(starts, dim=1))
            F.cross_entropy(head(states).flatten(0, 1), labels[i : i + 4].flatten()).backward()
            {step}
    """,
    "gradient-penalty": """
        for x in X.split(16):
            x.requires_grad_()
            slope, = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
            (critic(x).mean() + ((slope.norm(dim=1) - 1) ** 2).mean()).backward()
            {step}
    """,
    "tokens-counted-beforehand": _COUNTED_WINDOWS.replace("{objective}", OBJECTIVE),
    "ignored-targets": _COUNTED_WINDOWS.replace("{objective}", "F.cross_entropy(model(x[y != -100]), y[y != -100])"),
    "class-weights": _COUNTED_WINDOWS.replace("{objective}", "F.cross_entropy(model(x), y, weight=weight)"),
    "masked-by-hand": """
        for x, y, mask in zip(X.split(16), Y.split(16), masks.bool().view(2, 16)):
            F.cross_entropy(model(x[mask]), y[mask]).backward()
            {step}
    """,
    "sample-weights": """
        for x, y, w in zip(X.split(16), Y.split(16), weights.view(2, 16)):
            (F.cross_entropy(model(x), y, reduction="none") @ w / 16).backward()
            {step}
    """,
    "dropout": """
        next(iter(loader))
        for x, y in zip(X.split(16), Y.split(16)):
            mask = torch.cat([F.dropout(torch.ones(4, 8), 0.5) for _ in range(4)])
            F.cross_entropy(model[2](model[0](x) * mask), y).backward()
            {step}
    """,
    "encoder-layer-with-dropout": """
        for window in (loader[:4], loader[4:]):
            torch.stack([F.cross_entropy(model(x), y) for x, y in window]).mean().backward()
            {step}
    """,
    "sums-whose-gradients-are-divided-by-the-samples": """
        for window in (loader[:4], loader[4:8], loader[8:]):
            F.cross_entropy(model(torch.cat([x for x, _ in window])), torch.cat([y for _, y in window])).backward()
            {step}
    """,
    "noise-outside-modules": """
        next(iter(loader))
        for x, y in zip(X.split(16), Y.split(16)):
            noise = torch.cat([torch.randn(4, 6) for _ in range(4)])
            F.cross_entropy(model(x + 0.1 * noise), y).backward()
            {step}
    """,
    "two-loaders": """
        for x, y, (u, v) in zip(X.split(16), Y.split(16), zip(*(t.split(16) for t in other.dataset.tensors))):
            (F.cross_entropy(model(x), y) + F.mse_loss(head(model[:2](u)), v)).backward()
            {step}
    """,
    "k-changes": """
        for rows in (4, 8, 16):
            for x, y in zip(X.split(rows), Y.split(rows)):
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
    """,
    "pure-bf16": """
        model = model.double()
        for x, y in zip(X.split(16), Y.split(16)):
            F.cross_entropy(model(x.bfloat16().double()), y).backward()
            {step}
    """,
    "pure-bf16-many": """
        model = model.double()
        for _ in range(2):
            drawn = [(torch.randn(4, 6).bfloat16(), torch.randint(0, 3, (4,))) for _ in range(K)]
            x, y = torch.cat([x for x, _ in drawn]).double(), torch.cat([y for _, y in drawn])
            F.cross_entropy(model(x), y).backward()
            {step}
    """,
    "token-ratio-0.9": _COUNTED_WINDOWS.replace("{objective}", OBJECTIVE),
    "token-ratio-0.9-bf16": _COUNTED_WINDOWS.replace("{objective}", OBJECTIVE),
    "adversarial": """
        for x, y in zip(X.split(4), Y.split(4)):
            slope, = torch.autograd.grad(F.cross_entropy(model(x.requires_grad_()), y), x)
            F.cross_entropy(model(x.detach() + 0.1 * slope.sign()), y).backward()
            {step}
    """,
    "global-counter": """
        for x, y in zip(X[:20].repeat(4, 1).split(16), Y[:20].repeat(4).split(16)):
            F.cross_entropy(model(x), y).backward()
            {step}
    """,
    "one-process-ddp": """
        for x, y in zip(X.split(16), Y.split(16)):
            F.cross_entropy(wrapped(x), y).backward()
            {step}
        del wrapped
        dist.destroy_process_group()
    """,
    "mixed-samples": """
        batches = list(loader)
        for window in (batches[:4], batches[4:]):
            mixed, own, other, shares = [], [], [], []
            for x, y in window:
                share, order = float(torch.rand(())), torch.randperm(4)
                mixed.append(share * x + (1 - share) * x[order])
                own.append(y)
                other.append(y[order])
                shares.append(torch.full((4,), share))
            logs, share = F.log_softmax(model(torch.cat(mixed)), dim=1), torch.cat(shares)[:, None]
            target = share * F.one_hot(torch.cat(own), 3) + (1 - share) * F.one_hot(torch.cat(other), 3)
            (-(target * logs).sum() / 16).backward()
            {step}
    """,
    "instance-and-prior": """
        for x in X.view(2, 4, 4, 6):
            own, prior = x[:, :2].flatten(0, 1), x[:, 2:].flatten(0, 1)
            (F.mse_loss(model(own), own[:, :3]) + F.mse_loss(model(prior), prior[:, :3])).backward()
            {step}
    """,
    "time-first": """
        for _ in range(2):
            drawn = [(torch.randn(6, 4, 3), torch.randint(0, 2, (6, 4))) for _ in range(4)]
            x, y = torch.cat([x for x, _ in drawn], dim=1), torch.cat([y for _, y in drawn], dim=1)
            F.cross_entropy(head(rnn(x)[0]).flatten(0, 1), y.flatten()).backward()
            {step}
    """,
    "rows-by-number": """
        for _ in range(2):
            drawn = [(torch.randn(4, 6, 3), torch.randint(1, 7, (4,)), torch.randint(0, 2, (4,))) for _ in range(4)]
            x, lengths, y = (torch.cat(parts) for parts in zip(*drawn))
            F.cross_entropy(head(rnn(x)[0][torch.arange(16), lengths - 1]), y).backward()
            {step}
    """,
    "sums-divided-afterwards": _COUNTED_WINDOWS.replace(
        "{objective}", "(0.9 * F.cross_entropy(model(x), y) - 0.1 * F.log_softmax(model(x), 1).mean())"
    ),
    "dropout-and-batch-norm": """
        next(iter(loader))
        for x, y in zip(X.split(16), Y.split(16)):
            mask = torch.cat([F.dropout(torch.ones(4, 8), 0.2) for _ in range(4)])
            F.cross_entropy(model[3](model[1](model[0](x)) * mask), y).backward()
            {step}
    """,
    "contrastive-with-dropout": """
        next(iter(loader))
        for x in X.split(16):
            first, second = zip(*[[F.dropout(torch.ones(4, 8), 0.2) for _ in range(2)] for _ in range(4)])
            a, b = (F.normalize(model[2](model[0](x) * torch.cat(masks))) for masks in (first, second))
            F.cross_entropy(a @ b.T / 0.1, torch.arange(16)).backward()
            {step}
    """,
    "model-in-eval": """
        for x, y in zip(X.split(4), Y.split(4)):
            F.cross_entropy(model(x), y).backward()
            {step}
    """,
}


def large_batch_script(shape: Shape) -> str:
    """The script that trains as ``shape`` does, on one large batch for every step."""
    before, _, _ = shape.source().partition("\nfor ")
    loop = LOOPS.get(shape.name, _LOOP).replace("{objective}", OBJECTIVES.get(shape.name, OBJECTIVE))
    return f"{before}\n{dedent(loop)}".replace("{step}", _STEP)
