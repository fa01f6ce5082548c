"""The shapes that training loops come in: each as a right loop, with what verify must say, and wrong twins.

The right loop and each of its wrong twins are the same script with other texts for its marks. What is expected of every
one was worked out from what the loop does, not from a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import starmap
from textwrap import dedent

LOOP = """\
for i, (x, y) in enumerate(loader):
    (F.cross_entropy(model(x), y){scale}).backward()
    {boundary}"""
"""What stands for ``{loop}`` in a shape that is not about the loop itself."""

BOUNDARY = """\
if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()"""
"""What stands for ``{boundary}`` in a loop that counts micro-batches from 0 in ``i``."""

SCALER_BOUNDARY = """\
if (i + 1) % K == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()"""
"""The same for ``{scaler_boundary}``, with a gradient scaler."""

MARKS = {"loop": LOOP, "boundary": BOUNDARY, "scaler_boundary": SCALER_BOUNDARY}

HEAD = """\
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
X, Y = torch.randn(32, 6), torch.randint(0, 3, (32,))
loader = DataLoader(TensorDataset(X, Y), batch_size=4)
K = 4
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@dataclass(frozen=True)
class Shape:
    """One shape.

    ``marks`` are the texts that stand for ``{name}`` in the right loop; each of ``wrong`` replaces some of them and
    must deviate with the codes given. ``verdict`` is the right loop's.
    """

    name: str
    says: str
    body: str
    marks: dict[str, str] = field(default_factory=dict)
    wrong: tuple[tuple[dict[str, str], frozenset[str]], ...] = ()
    verdict: str = "equivalent"
    reason: str = ""

    def source(self, **marks: str) -> str:
        """The script with its marks filled in."""
        text = HEAD + dedent(self.body).lstrip("\n")
        for name, value in {**MARKS, **self.marks, **marks}.items():
            text = text.replace("{" + name + "}", value)
        return text


def _wrong(codes: str, **marks: str) -> tuple[dict[str, str], frozenset[str]]:
    return marks, frozenset(codes.split())


UNSCALED = _wrong("GA101", scale="")
SCALED = {"scale": " / K"}
SCALED_OR_NOT = (SCALED, (UNSCALED,))


def _scaled_or_unscaled(label: str, body: str) -> Shape:
    name, _, says = label.partition(": ")
    return Shape(name, says, body, *SCALED_OR_NOT)


SCALED_OR_UNSCALED = {
    "autocast-bf16: autocast in bfloat16": """
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y){scale}
            loss.backward()
            {boundary}
        """,
    "scaler-skips-a-step: a GradScaler that skips a step on inf": """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for i, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y){scale}
            if i == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            {scaler_boundary}
        """,
    "torch-cuda-amp-spelling: the older torch.cuda.amp spellings, disabled on a CPU": """
        import warnings
        warnings.simplefilter("ignore")
        scaler = torch.cuda.amp.GradScaler(enabled=False)
        for i, (x, y) in enumerate(loader):
            with torch.cuda.amp.autocast(enabled=False):
                loss = F.cross_entropy(model(x), y){scale}
            scaler.scale(loss).backward()
            if (i + 1) % K == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
        """,
    "grad-zeroed-in-place: gradients cleared with p.grad.zero_()": """
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x), y){scale}).backward()
            if (i + 1) % K == 0:
                optimizer.step()
                for p in model.parameters():
                    p.grad.zero_()
        """,
    "shared-parameters: two optimizers that share parameters": """
        other = torch.optim.SGD(model[2].parameters(), lr=0.01)
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x), y){scale}).backward()
            if (i + 1) % K == 0:
                optimizer.step()
                other.step()
                optimizer.zero_grad()
        """,
    "writes-into-its-input: a model that writes what it computes into the dictionary that it was given": """
        class Writes(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = model
            def forward(self, given):
                given["logits"] = self.inner(given["x"])
                return given
        writes = Writes()
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(writes({"x": x})["logits"], y){scale}).backward()
            {boundary}
        """,
    "offsets: bags of tokens, each batch with the places where its bags begin": """
        bag = nn.EmbeddingBag(10, 3)
        optimizer = torch.optim.SGD(bag.parameters(), lr=0.1)
        for i, (_, y) in enumerate(loader):
            tokens, offsets = torch.randint(0, 10, (20,)), torch.tensor([0, 3, 9, 14])
            (F.cross_entropy(bag(tokens, offsets), y){scale}).backward()
            {boundary}
        """,
    "fused: a fused optimizer": """
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        {loop}
        """,
    "fused-with-scaler: a fused optimizer under a GradScaler, which hands it scaled gradients": """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for i, (x, y) in enumerate(loader):
            scaler.scale(F.cross_entropy(model(x), y){scale}).backward()
            {scaler_boundary}
        """,
    "foreach-and-groups: a foreach optimizer with parameter groups": """
        groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "weight_decay": 0.1}]
        optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, foreach=True)
        {loop}
        """,
    "frozen-and-unused: frozen and unused parameters": """
        model[0].requires_grad_(False)
        model.unused = nn.Linear(2, 2)
        model.forward = lambda x: model[2](model[1](model[0](x)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        {loop}
        """,
    "group-added-later: parameters that join the optimizer during training": """
        optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
        for i, (x, y) in enumerate(loader):
            if i == K:
                optimizer.add_param_group({"params": model[0].parameters()})
                model[0].zero_grad()
            (F.cross_entropy(model(x), y){scale}).backward()
            {boundary}
        """,
    "tied-weights: an embedding whose weights are the output layer's too": """
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(7, 5)
                self.out = nn.Linear(5, 7, bias=False)
                self.out.weight = self.embed.weight
            def forward(self, tokens):
                return self.out(self.embed(tokens).tanh())
        model = Tied()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tokens = torch.randint(0, 7, (8, 4, 6))
        for i, batch in enumerate(tokens):
            scores = model(batch[:, :-1])
            (F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten()){scale}).backward()
            {boundary}
        """,
    "sparse: sparse gradients of an embedding": """
        model = nn.Embedding(20, 3, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
        tokens, targets = torch.randint(0, 20, (8, 4)), torch.randint(0, 3, (8, 4))
        for i in range(8):
            (F.cross_entropy(model(tokens[i]), targets[i]){scale}).backward()
            {boundary}
        """,
    "checkpointing: gradient checkpointing": """
        from torch.utils.checkpoint import checkpoint
        for i, (x, y) in enumerate(loader):
            scores = model[2](checkpoint(lambda t: model[1](model[0](t)), x, use_reentrant=False))
            (F.cross_entropy(scores, y){scale}).backward()
            {boundary}
        """,
    "checkpointing-reentrant: reentrant gradient checkpointing": """
        from torch.utils.checkpoint import checkpoint
        for i, (x, y) in enumerate(loader):
            scores = model[2](checkpoint(lambda t: model[1](model[0](t)), x.requires_grad_(), use_reentrant=True))
            (F.cross_entropy(scores, y){scale}).backward()
            {boundary}
        """,
    "compiled: a compiled model": """
        compiled = torch.compile(model, backend="aot_eager")
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(compiled(x), y){scale}).backward()
            {boundary}
        """,
    "carried-state: an RNN whose state is carried from batch to batch": """
        rnn, head = nn.RNN(3, 5, batch_first=True), nn.Linear(5, 2)
        optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
        data, labels = torch.randn(8, 4, 6, 3), torch.randint(0, 2, (8, 4, 6))
        state = torch.zeros(1, 4, 5)
        for i in range(8):
            states, state = rnn(data[i], state.detach())
            (F.cross_entropy(head(states).flatten(0, 1), labels[i].flatten()){scale}).backward()
            {boundary}
        """,
    "two-losses-added: two losses added before one backward": """
        for i, (x, y) in enumerate(loader):
            out = model(x)
            loss = F.cross_entropy(out, y) + 0.1 * out.pow(2).mean()
            (loss{scale}).backward()
            {boundary}
        """,
    "two-losses-two-backwards: two losses with a backward each, over a retained graph": """
        for i, (x, y) in enumerate(loader):
            out = model(x)
            (F.cross_entropy(out, y){scale}).backward(retain_graph=True)
            (0.1 * out.pow(2).mean(){scale}).backward()
            {boundary}
        """,
    "weight-penalty: a weight penalty in every micro-batch's loss": """
        for i, (x, y) in enumerate(loader):
            penalty = sum((p ** 2).sum() for p in model.parameters())
            ((F.cross_entropy(model(x), y) + 0.01 * penalty){scale}).backward()
            {boundary}
        """,
    "several-forwards: two forward passes in one backward (a siamese network)": """
        for i, (x, y) in enumerate(loader):
            loss = F.mse_loss(model(x), model(x.flip(1)))
            (loss{scale}).backward()
            {boundary}
        """,
    "gradient-penalty: a gradient penalty: a double backward": """
        critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
        for i, (x, y) in enumerate(loader):
            x = x.requires_grad_()
            score = critic(x)
            slope, = torch.autograd.grad(score.sum(), x, create_graph=True)
            loss = score.mean() + ((slope.norm(dim=1) - 1) ** 2).mean()
            (loss{scale}).backward()
            {boundary}
        """,
    "label-smoothing: label smoothing": """
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x), y, label_smoothing=0.1){scale}).backward()
            {boundary}
        """,
    "sample-weights: per-sample weights in a mean": """
        weights = torch.rand(8, 4) + 0.5
        for i, ((x, y), w) in enumerate(zip(loader, weights)):
            ((F.cross_entropy(model(x), y, reduction="none") * w).mean(){scale}).backward()
            {boundary}
        """,
    "loss-in-the-output: a model that returns an object with .loss": """
        from types import SimpleNamespace
        class Wrapped(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = model
            def forward(self, x, y):
                scores = self.inner(x)
                return SimpleNamespace(loss=F.cross_entropy(scores, y), scores=scores)
        wrapped = Wrapped()
        for i, (x, y) in enumerate(loader):
            out = wrapped(x, y)
            (out.loss{scale}).backward()
            {boundary}
        """,
    "dropout: dropout: the large batch gets the masks that the loop drew": """
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        {loop}
        """,
    "encoder-layer-with-dropout: a transformer's encoder layer with dropout, whose attention turns its data round": """
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.3, batch_first=True)
        loader = [(torch.randn(4, 5, 6), torch.randint(0, 3, (4,))) for _ in range(8)]
        model = nn.Sequential(layer, nn.Flatten(), nn.Linear(30, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        {loop}
        """,
    "learned-weights-of-losses: losses weighted by learned variances": """
        spread = nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.Adam([*model.parameters(), spread], lr=0.01)
        for i, (x, y) in enumerate(loader):
            scores = model(x)
            first, second = F.cross_entropy(scores, y), scores.square().mean()
            loss = torch.exp(-spread[0]) * first + spread[0] + torch.exp(-spread[1]) * second + spread[1]
            (loss{scale}).backward()
            {boundary}
        """,
    "one-minus-a-mean: one minus a mean similarity": """
        for i, (x, y) in enumerate(loader):
            loss = 1 - F.cosine_similarity(model(x), F.one_hot(y, 3).float()).mean()
            (loss{scale}).backward()
            {boundary}
        """,
    "auxiliary-loss-in-an-attribute: an auxiliary loss that the model leaves in an attribute": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(6, 3)

            def forward(self, x):
                scores = self.inner(x)
                self.penalty = scores.square().mean()
                return scores

        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y) + 0.1 * model.penalty
            (loss{scale}).backward()
            {boundary}
        print(model.penalty.item())
        """,
    "noise-outside-modules: noise drawn by the loop itself": """
        for i, (x, y) in enumerate(loader):
            noisy = x + 0.1 * torch.randn_like(x)
            (F.cross_entropy(model(noisy), y){scale}).backward()
            {boundary}
        """,
    "batch-norm-frozen: BatchNorm in evaluation mode": """
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        model[1].eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        {loop}
        """,
    "pure-bf16: weights and gradients in bfloat16": """
        model = model.bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x.bfloat16()), y){scale}).backward()
            {boundary}
        """,
    "pure-float64: weights and gradients in float64": """
        model = model.double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x.double()), y){scale}).backward()
            {boundary}
        """,
    "pure-bf16-many: 64 micro-batches added up in bfloat16": """
        K = 64
        model = model.bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(2 * K):
            x, y = torch.randn(4, 6).bfloat16(), torch.randint(0, 3, (4,))
            (F.cross_entropy(model(x), y){scale}).backward()
            {boundary}
        """,
    "global-counter: a counter that no epoch resets: windows run over the epoch's end": """
        loader = DataLoader(TensorDataset(X[:20], Y[:20]), batch_size=4)
        step = 0
        for epoch in range(4):
            for x, y in loader:
                (F.cross_entropy(model(x), y){scale}).backward()
                step += 1
                if step % K == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        """,
    "losses-in-a-list: one backward over a list of losses": """
        for i, (x, y) in enumerate(loader):
            scores = model(x)
            torch.autograd.backward([F.cross_entropy(scores, y){scale}, 0.1 * scores.pow(2).mean(){scale}])
            {boundary}
        """,
    "two-loaders: two tasks, each with a data loader and a backward of its own": """
        head = nn.Linear(8, 1)
        optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
        other = DataLoader(TensorDataset(torch.randn(32, 6), torch.randn(32, 1)), batch_size=4)
        for i, ((x, y), (u, v)) in enumerate(zip(loader, other)):
            (F.cross_entropy(model(x), y){scale}).backward()
            (F.mse_loss(head(model[:2](u)), v){scale}).backward()
            {boundary}
        """,
    "fused-scaler-skips-a-step: a fused optimizer whose scaler skips a step on inf": """
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for i, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y){scale}
            if i == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            {scaler_boundary}
        """,
    "closure-of-sgd: a closure that only returns the loss": """
        for i, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y){scale}
            loss.backward()
            if (i + 1) % K == 0:
                optimizer.step(lambda: loss)
                optimizer.zero_grad()
        """,
    "reentrant-shared-block: reentrant gradient checkpointing of a block that is used twice": """
        from torch.utils.checkpoint import checkpoint
        first, block, last = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 3)
        optimizer = torch.optim.SGD([*first.parameters(), *block.parameters(), *last.parameters()], lr=0.1)
        for i, (x, y) in enumerate(loader):
            h = first(x)
            for _ in range(2):
                h = checkpoint(block, h, use_reentrant=True)
            (F.cross_entropy(last(h), y){scale}).backward()
            {boundary}
        """,
    "state-assigned: weights loaded with load_state_dict(assign=True) before the optimizer is made": """
        model.load_state_dict({k: v + 0.01 for k, v in model.state_dict().items()}, assign=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        {loop}
        """,
    "model-copied: a deep copy of a model whose optimizer was made before": """
        import copy
        model = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        {loop}
        """,
    "model-and-optimizer-copied: a model and its optimizer copied together, during training": """
        import copy
        for i, (x, y) in enumerate(loader):
            if i == K:
                model, optimizer = copy.deepcopy((model, optimizer))
            (F.cross_entropy(model(x), y){scale}).backward()
            {boundary}
        """,
    "optimizer-state-restored: a checkpoint that is restored during training": """
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for i, (x, y) in enumerate(loader):
            if i == K:
                model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()})
                optimizer.load_state_dict(optimizer.state_dict())
            (F.cross_entropy(model(x), y){scale}).backward()
            {boundary}
        """,
    "gradients-assigned: gradients from torch.autograd.grad, added up and put into .grad by hand": """
        for i, (x, y) in enumerate(loader):
            if i % K == 0:
                total = [torch.zeros_like(p) for p in model.parameters()]
            for t, g in zip(total, torch.autograd.grad(F.cross_entropy(model(x), y){scale}, list(model.parameters()))):
                t += g
            if (i + 1) % K == 0:
                for p, t in zip(model.parameters(), total):
                    p.grad = t
                optimizer.step()
        """,
    "keyword-arguments: a model that is called with keywords": """
        class Keyed(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = model
            def forward(self, *, inputs, labels=None, scale=1.0):
                return {"loss": scale * F.cross_entropy(self.inner(inputs), labels)}
        keyed = Keyed()
        for i, batch in enumerate({"inputs": x, "labels": y} for x, y in loader):
            (keyed(**batch)["loss"]{scale}).backward()
            {boundary}
        """,
    "compiled-in-place: a model compiled in place": """
        model.compile(backend="aot_eager")
        {loop}
        """,
    "one-process-ddp: DistributedDataParallel with one process": """
        import contextlib, tempfile, torch.distributed as dist
        store = dist.FileStore(tempfile.mktemp(), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        wrapped = nn.parallel.DistributedDataParallel(model)
        for i, (x, y) in enumerate(loader):
            with wrapped.no_sync() if (i + 1) % K else contextlib.nullcontext():
                (F.cross_entropy(wrapped(x), y){scale}).backward()
            {boundary}
        # Freed after its group, a wrapper waits for gloo's thread without letting it run: PyTorch hangs now and then.
        del wrapped
        dist.destroy_process_group()
        """,
    "mixed-samples: mixed samples: two losses weighted by a random share of each micro-batch": """
        for i, (x, y) in enumerate(loader):
            share = float(torch.rand(()))
            order = torch.randperm(len(x))
            scores = model(share * x + (1 - share) * x[order])
            loss = share * F.cross_entropy(scores, y) + (1 - share) * F.cross_entropy(scores, y[order])
            (loss{scale}).backward()
            {boundary}
        """,
    "coefficient-of-one-over-k: a coefficient of one loss that happens to equal 1/K": """
        K = 2
        for i, (x, y) in enumerate(loader):
            scores = model(x)
            loss = F.cross_entropy(scores, y) + 0.5 * (0.5 * scores.pow(2).mean()) - 0.01 * scores.sigmoid().mean()
            (loss{scale}).backward()
            {boundary}
        """,
    "instance-and-prior: a batch of two halves that are parted again (prior preservation)": """
        for i, (x, _) in enumerate(loader):
            own, prior = model(x).chunk(2)
            loss = F.mse_loss(own, x[:2, :3]) + F.mse_loss(prior, x[2:, :3])
            (loss{scale}).backward()
            {boundary}
        """,
    "time-first: recurrent layers in PyTorch's own order: time first": """
        rnn, head = nn.GRU(3, 5), nn.Linear(5, 2)
        optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
        for i in range(8):
            x, y = torch.randn(6, 4, 3), torch.randint(0, 2, (6, 4))
            (F.cross_entropy(head(rnn(x)[0]).view(-1, 2), y.view(-1)){scale}).backward()
            {boundary}
        """,
    "rows-by-number: the last token of every sample, picked by the numbers of rows": """
        rnn, head = nn.RNN(3, 5, batch_first=True), nn.Linear(5, 2)
        optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
        for i in range(8):
            x, lengths, y = torch.randn(4, 6, 3), torch.randint(1, 7, (4,)), torch.randint(0, 2, (4,))
            last = rnn(x)[0][torch.arange(4), lengths - 1]
            (F.cross_entropy(head(last), y){scale}).backward()
            {boundary}
        """,
}
"""The scripts of the shapes whose wrong twin is the loss that nothing divides, by their names and what they say."""

DIVIDED_GRADIENTS = """
        for i, (x, y) in enumerate(loader):
            F.cross_entropy(model(x), y).backward()
            if (i + 1) % K == 0:
                for p in model.parameters():
                    {divide}
                optimizer.step()
                optimizer.zero_grad()
        """

SUMMED_LOSSES = """
        total = 0.0
        for i, (x, y) in enumerate(loader):
            total = total + F.cross_entropy(model(x), y)
            if (i + 1) % K == 0:
                {total}.backward()
                optimizer.step()
                optimizer.zero_grad()
                total = 0.0
        """

SHAPES = [
    *starmap(_scaled_or_unscaled, SCALED_OR_UNSCALED.items()),
    Shape(
        "autocast-fp16-scaler",
        "autocast in float16 with a GradScaler, unscaled and clipped at the boundary",
        """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y){scale}
            scaler.scale(loss).backward()
            if (i + 1) % K == 0:
                {unscale}
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        """,
        {**SCALED, "unscale": "scaler.unscale_(optimizer)"},
        (UNSCALED, _wrong("GA501", unscale="pass")),
    ),
    *(
        Shape(
            f"clip-by-{kind}",
            f"an active clip by {kind}",
            """
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x), y){scale}).backward()
            {early}
            if (i + 1) % K == 0:
                {clip}
                optimizer.step()
                optimizer.zero_grad()
        """,
            {**SCALED, "early": "", "clip": clip},
            (UNSCALED, _wrong("GA401", early=clip, clip="pass")),
        )
        for kind, clip in (
            ("norm", "nn.utils.clip_grad_norm_(model.parameters(), 0.05)"),
            ("value", "nn.utils.clip_grad_value_(model.parameters(), 0.005)"),
        )
    ),
    Shape(
        "clip-by-hand",
        "a clip by value written by hand with Tensor.clamp_",
        """
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x), y){scale}).backward()
            for p in model.parameters():
                if {when}:
                    p.grad.clamp_(-0.005, 0.005)
            {boundary}
        """,
        {**SCALED, "when": "(i + 1) % K == 0"},
        (_wrong("GA401", when="True"),),
    ),
    Shape(
        "gradients-divided",
        "gradients divided by K before the step",
        DIVIDED_GRADIENTS,
        {"divide": "p.grad.div_(K)"},
        (_wrong("GA101", divide="pass"), _wrong("GA102", divide="p.grad /= K * K")),
    ),
    Shape(
        "gradients-divided-behind-autograd",
        "gradients divided through .grad.data, which no version counter shows",
        DIVIDED_GRADIENTS,
        {"divide": "p.grad.data.div_(K)"},
        (_wrong("GA101", divide="pass"),),
    ),
    Shape(
        "gradients-divided-by-hooks",
        "hooks on the parameters that divide what each micro-batch adds",
        """
        for p in model.parameters():
            p.register_hook(lambda g: g / {share})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, (x, y) in enumerate(loader):
            F.cross_entropy(model(x), y).backward()
            {boundary}
        """,
        {"share": "K"},
        (_wrong("GA101", share="1"), _wrong("GA102", share="(K * K)")),
    ),
    Shape(
        "grad-none",
        "gradients cleared with p.grad = None",
        """
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x), y){scale}).backward()
            if (i + 1) % K == 0:
                optimizer.step()
                {clear}
        """,
        {**SCALED, "clear": "for p in model.parameters(): p.grad = None"},
        (UNSCALED, _wrong("GA203", clear="pass")),
    ),
    Shape(
        "module-zero-grad",
        "gradients cleared with model.zero_grad()",
        """
        for i, (x, y) in enumerate(loader):
            {early}
            (F.cross_entropy(model(x), y){scale}).backward()
            if (i + 1) % K == 0:
                optimizer.step()
                model.zero_grad()
        """,
        {**SCALED, "early": ""},
        (UNSCALED, _wrong("GA201", early="model.zero_grad()")),
    ),
    Shape(
        "encoder-and-head",
        "two optimizers over disjoint parameters",
        """
        encoder, head = nn.Linear(6, 8), nn.Linear(8, 3)
        optimizers = [torch.optim.SGD(encoder.parameters(), lr=0.1), torch.optim.Adam(head.parameters())]
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(head(encoder(x).tanh()), y){scale}).backward()
            if (i + 1) % K == 0:
                for one in optimizers:
                    one.step()
                for one in {cleared}:
                    one.zero_grad()
        """,
        {**SCALED, "cleared": "optimizers"},
        (UNSCALED, _wrong("GA204", cleared="optimizers[:1]")),
    ),
    Shape(
        "gan",
        "a GAN, each of whose optimizers has its own window",
        """
        G, D = nn.Linear(3, 6), nn.Linear(6, 1)
        of_g, of_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
        bce = nn.BCEWithLogitsLoss()
        for x, _ in loader:
            fake = G(torch.randn(4, 3))
            {clear_d}
            bce(D(x), torch.ones(4, 1)).backward()
            bce(D(fake.detach()), torch.zeros(4, 1)).backward()
            of_d.step()
            of_g.zero_grad()
            bce(D(fake), torch.ones(4, 1)).backward()
            of_g.step()
        """,
        {"clear_d": "of_d.zero_grad()"},
        (_wrong("GA204", clear_d="pass"),),
    ),
    Shape(
        "lbfgs",
        "a closure that is called several times, each time over the whole window (LBFGS)",
        """
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
        batches = list(loader)
        for start in range(0, len(batches), K):
            window = batches[start:start + K]
            def closure():
                {clear}
                total = 0.0
                for x, y in window:
                    loss = F.cross_entropy(model(x), y){scale}
                    loss.backward()
                    total += loss.item()
                return total
            optimizer.step(closure)
        """,
        {**SCALED, "clear": "optimizer.zero_grad()"},
        (UNSCALED, _wrong("GA203", clear="pass")),
    ),
    Shape(
        "closure-once",
        "a closure that the optimizer calls once, and which runs the window's last micro-batch",
        """
        for i, (x, y) in enumerate(loader):
            def closure():
                loss = F.cross_entropy(model(x), y){scale}
                {clear}
                loss.backward()
                {clip}
                return loss
            if (i + 1) % K == 0:
                optimizer.step(closure)
            else:
                closure()
        """,
        {**SCALED, "clear": "if i % K == 0: optimizer.zero_grad()", "clip": "pass"},
        (
            UNSCALED,
            _wrong("GA201", clear="optimizer.zero_grad()"),
            _wrong("GA401", clip="nn.utils.clip_grad_norm_(model.parameters(), 0.05)"),
        ),
    ),
    Shape(
        "optimizer-in-backward",
        "an optimizer that steps in a hook of backward",
        """
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
        def apply(p):
            optimizers[p].step()
            optimizers[p].zero_grad()
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(apply)
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
        """,
        verdict="inconclusive",
        reason="inside backward",
    ),
    Shape(
        "tokens-counted-beforehand",
        "a sum-reduced loss over the window's token count, counted beforehand",
        """
        batches = [(torch.randn(n, 6), torch.randint(0, 3, (n,))) for n in (1, 5, 2, 4, 3, 3, 6, 2)]
        for start in range(0, 8, K):
            window = batches[start:start + K]
            tokens = sum(len(y) for _, y in window)
            for x, y in window:
                loss = {loss}
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        {"loss": "F.cross_entropy(model(x), y, reduction='sum') / tokens"},
        (_wrong("GA104", loss="F.cross_entropy(model(x), y) / len(window)"),),
    ),
    Shape(
        "ignored-targets",
        "ignore_index, with targets that differ in number",
        """
        Y[:3] = Y[9] = Y[20:22] = -100
        batches = list(zip(X.split(4), Y.split(4)))
        for start in range(0, 8, K):
            window = batches[start:start + K]
            count = sum((y != -100).sum() for _, y in window)
            for x, y in window:
                {loss}.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        {"loss": "(F.cross_entropy(model(x), y, ignore_index=-100, reduction='sum') / count)"},
        (_wrong("GA104", loss="(F.cross_entropy(model(x), y, ignore_index=-100) / K)"),),
    ),
    Shape(
        "class-weights",
        "class weights: a mean over the sum of the weights",
        """
        weight = torch.tensor([1.0, 3.0, 0.5])
        batches = list(zip(X.split(4), Y.split(4)))
        for start in range(0, 8, K):
            window = batches[start:start + K]
            total = sum(weight[y].sum() for _, y in window)
            for x, y in window:
                {loss}.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        {"loss": "(F.cross_entropy(model(x), y, weight=weight) * weight[y].sum() / total)"},
        (_wrong("GA104", loss="(F.cross_entropy(model(x), y, weight=weight) / K)"),),
    ),
    Shape(
        "masked-by-hand",
        "a masked loss by hand, the mask's total counted beforehand",
        """
        masks = (torch.rand(8, 4) > 0.4).float()
        masks[:, 0] = 1.0
        batches = list(zip(X.split(4), Y.split(4), masks))
        for start in range(0, 8, K):
            window = batches[start:start + K]
            total = sum(mask.sum() for _, _, mask in window)
            for x, y, mask in window:
                ce = F.cross_entropy(model(x), y, reduction="none")
                {loss}.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        {"loss": "((ce * mask).sum() / total)"},
        (_wrong("GA104", loss="((ce * mask).sum() / mask.sum() / K)"),),
    ),
    Shape(
        "state-in-an-attribute",
        "a model that keeps a state in an attribute from batch to batch",
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell, self.head, self.state, self.seen = nn.GRUCell(6, 8), nn.Linear(8, 3), None, []

            def forward(self, x):
                after = self.cell(x, self.state)
                self.state = after.detach()
                self.seen.append(len(x))
                return self.head(after)

        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        {loop}
        assert model.seen == [4] * 8
        """,
        *SCALED_OR_NOT,
        verdict="inconclusive",
        reason="keeps state",
    ),
    Shape(
        "power-iteration-in-buffers",
        "a model whose buffers move with every call (spectral norm)",
        """
        from torch.nn.utils.parametrizations import spectral_norm
        model = nn.Sequential(spectral_norm(nn.Linear(6, 8)), nn.Tanh(), spectral_norm(nn.Linear(8, 3)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        {loop}
        """,
        *SCALED_OR_NOT,
        verdict="inconclusive",
        reason="keeps state",
    ),
    Shape(
        "sharpness-aware",
        "two passes over each window, the first of which moves the weights by hand (sharpness-aware minimization)",
        """
        batches = list(loader)
        for start in range(0, len(batches), K):
            for second in (False, True):
                for x, y in batches[start : start + K]:
                    (F.cross_entropy(model(x), y) / K).backward()
                if not second:
                    with torch.no_grad():
                        moved = [p.grad / 20 for p in model.parameters()]
                        torch._foreach_add_(list(model.parameters()), moved)
                    optimizer.zero_grad()
            with torch.no_grad():
                torch._foreach_sub_(list(model.parameters()), moved)
            optimizer.step()
            optimizer.zero_grad()
        """,
    ),
    Shape(
        "overlap-of-a-batch",
        "an overlap (Dice) over all samples of a batch, and a term of the batch's own",
        """
        for i, (x, y) in enumerate(loader):
            scores, target = model(x).sigmoid(), F.one_hot(y, 3).float()
            target[:, 0] = x[:, 0].sigmoid()
            dice = 1 - 2 * (scores * target).sum() / (scores.sum() + target.sum())
            (dice / K).backward()
            {boundary}
        """,
        verdict="not-equivalent-by-construction",
        reason="output for a sample depends on the other samples",
    ),
    Shape(
        "sums-whose-gradients-are-divided-by-the-samples",
        "a sum, whose gradients are divided by the samples that the window really had",
        """
        loader, seen = [(torch.randn(4, 6), torch.randint(0, 3, (4,))) for _ in range(10)], 0
        for i, (x, y) in enumerate(loader):
            F.cross_entropy(model(x), y, reduction="sum").backward()
            seen += len(x)
            if (i + 1) % K == 0 or i + 1 == len(loader):
                for p in model.parameters():
                    p.grad /= {count}
                optimizer.step()
                optimizer.zero_grad()
                seen = 0
        """,
        {"count": "seen"},
        (_wrong("GA103", count="(4 * K)"),),
    ),
    Shape(
        "batch-norm",
        "BatchNorm in training mode",
        """
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        {loop}
        """,
        *SCALED_OR_NOT,
        verdict="not-equivalent-by-construction",
        reason="BatchNorm1d",
    ),
    Shape(
        "in-batch-negatives",
        "a contrastive loss with in-batch negatives",
        """
        for i, (x, y) in enumerate(loader):
            a, b = F.normalize(model(x)), F.normalize(model(x.flip(1)))
            (F.cross_entropy(a @ b.T / 0.1, torch.arange(4)){scale}).backward()
            {boundary}
        """,
        SCALED,
        verdict="not-equivalent-by-construction",
    ),
    Shape(
        "token-ratio-0.9",
        "unit counts that differ by a tenth, in float32",
        """
        batches = [(torch.randn(n, 6), torch.randint(0, 3, (n,))) for n in (20, 18, 20, 18, 18, 20, 20, 18)]
        for start in range(0, 8, K):
            window = batches[start:start + K]
            rows = sum(len(y) for _, y in window)
            for x, y in window:
                loss = F.cross_entropy(model(x), y) * {share}
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        {"share": "len(y) / rows"},
        (_wrong("GA104", share="(1 / K)"),),
    ),
    Shape(
        "token-ratio-0.9-bf16",
        "unit counts that differ by a tenth, under autocast in bfloat16",
        """
        batches = [(torch.randn(n, 6), torch.randint(0, 3, (n,))) for n in (20, 18, 20, 18, 18, 20, 20, 18)]
        for start in range(0, 8, K):
            window = batches[start:start + K]
            rows = sum(len(y) for _, y in window)
            for x, y in window:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(x), y) * {share}
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        {"share": "len(y) / rows"},
        (_wrong("GA104", share="(1 / K)"),),
    ),
    Shape(
        "weight-updated-by-hand",
        "weights updated by hand, without an optimizer",
        """
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x), y){scale}).backward()
            if (i + 1) % K == 0:
                with torch.no_grad():
                    for p in model.parameters():
                        p -= 0.1 * p.grad
                        p.grad = None
        """,
        SCALED,
        verdict="inconclusive",
        reason="not by a step() that PyTorch reports",
    ),
    Shape(
        "adversarial",
        "a first backward that only finds an adversarial example",
        """
        for i, (x, y) in enumerate(loader):
            x = x.requires_grad_()
            F.cross_entropy(model(x), y).backward()
            hard = (x + 0.1 * x.grad.sign()).detach()
            model.zero_grad()
            F.cross_entropy(model(hard), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    ),
    Shape(
        "stacked-losses",
        "one backward over the sum of a window's losses",
        """
        losses = []
        for x, y in loader:
            losses.append(F.cross_entropy(model(x), y))
            if len(losses) == K:
                {total}.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses = []
        """,
        {"total": "torch.stack(losses).mean()"},
    ),
    Shape(
        "summed-losses",
        "one backward over a window's losses, added one by one",
        SUMMED_LOSSES,
        {"total": "(total / K)"},
    ),
    Shape(
        "summed-losses-undivided",
        "one backward over a window's losses, added one by one, not divided",
        SUMMED_LOSSES,
        {"total": "total"},
        verdict="inconclusive",
        reason="they may or may not be micro-batches",
    ),
    Shape(
        "k-changes",
        "K that grows from epoch to epoch",
        """
        for K in (1, 2, 4):
            for i, (x, y) in enumerate(loader):
                (F.cross_entropy(model(x), y) / K).backward()
                {boundary}
        """,
        {"boundary": BOUNDARY.replace("\n", "\n    ")},
    ),
    Shape(
        "optimizer-wrapped",
        "an optimizer that wraps another and moves the weights after it (Lookahead)",
        """
        from collections import OrderedDict
        class Lookahead(torch.optim.Optimizer):
            def __init__(self, inner):
                self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
                self.inner, self.param_groups, self.defaults, self.state = inner, inner.param_groups, {}, {}
                self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]
            @torch.no_grad()
            def step(self):
                self.inner.step()
                for p, slow in zip(self.param_groups[0]["params"], self.slow):
                    p.copy_(slow.lerp_(p, 0.5))
        optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
        {first}
        {loop}
        """,
        {**SCALED_OR_NOT[0], "first": "optimizer.zero_grad()"},
        SCALED_OR_NOT[1],
    ),
    Shape(
        "optimizer-of-its-own",
        "an optimizer that PyTorch does not know as one",
        """
        class Own(torch.optim.Optimizer):
            def __init__(self, parameters):
                self.param_groups = [{"params": list(parameters)}]
            def step(self):
                with torch.no_grad():
                    for p in self.param_groups[0]["params"]:
                        p -= 0.1 * p.grad
                        p.grad = None
        optimizer = Own(model.parameters())
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x), y) / K).backward()
            if (i + 1) % K == 0:
                optimizer.step()
        """,
        verdict="inconclusive",
        reason="not by a step() that PyTorch reports",
    ),
    Shape(
        "sums-divided-afterwards",
        "sums of several terms, whose gradients are divided by the window's samples",
        """
        batches = [(torch.randn(n, 6), torch.randint(0, 3, (n,))) for n in (3, 6, 4, 3, 2, 6, 3, 5)]
        for start in range(0, 8, K):
            count = 0
            for x, y in batches[start:start + K]:
                scores = F.log_softmax(model(x), 1)
                (0.9 * F.nll_loss(scores, y, reduction="sum") - 0.1 / 3 * scores.sum()).backward()
                count += len(y)
            for p in model.parameters():
                p.grad.data.mul_(1 / {count})
            optimizer.step()
            optimizer.zero_grad()
        """,
        {"count": "count"},
    ),
    Shape(
        "dropout-and-batch-norm",
        "BatchNorm in training mode with dropout",
        """
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        {loop}
        """,
        *SCALED_OR_NOT,
        verdict="not-equivalent-by-construction",
        reason="BatchNorm1d",
    ),
    Shape(
        "contrastive-with-dropout",
        "in-batch negatives made by dropout",
        """
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, (x, y) in enumerate(loader):
            a, b = F.normalize(model(x)), F.normalize(model(x))
            (F.cross_entropy(a @ b.T / 0.1, torch.arange(4)){scale}).backward()
            {boundary}
        """,
        SCALED,
        verdict="not-equivalent-by-construction",
    ),
    Shape(
        "model-in-eval",
        "plain training without accumulation",
        """
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """,
    ),
]
