"""The code before a variant's loop: its batches, model, optimizers and what else it creates once."""

from __future__ import annotations

from gradcheck_accum.fuzz.variants import COUNTED, TOKENS, Variant

_MODELS = {
    "linear": "nn.Linear(4, 3)",
    "mlp": "nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))",
    "conv": "nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 3))",
    "rnn": "Recurrent()",
    "attention": "Attention()",
    "tied": "Tied()",
}
_CLASSES = {
    "rnn": """\
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.RNN(2, 3, batch_first=True)

    def forward(self, x):
        return self.cell(x.view(-1, 2, 2))[0][:, -1]
""",
    "attention": """\
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.MultiheadAttention(2, 1, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        steps = x.view(-1, 2, 2)
        return self.head(self.mix(steps, steps, steps, need_weights=False)[0].flatten(1))
""",
    "tied": """\
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 4)
        self.bend = nn.Linear(4, 4)
        self.out = nn.Linear(4, 3, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x):
        return self.out(self.bend(self.table(x)))
""",
}
_OPTIMIZERS = {
    "SGD": "torch.optim.SGD({}.parameters(), lr=0.1)",
    "momentum": "torch.optim.SGD({}.parameters(), lr=0.1, momentum=0.9)",
    "Adam": "torch.optim.Adam({}.parameters(), lr=0.01)",
    "AdamW": "torch.optim.AdamW({}.parameters(), lr=0.01)",
    "RMSprop": "torch.optim.RMSprop({}.parameters(), lr=0.01)",
}


def preamble(v: Variant) -> list[str]:
    """The lines before the loop of ``v``, up to its counters."""
    lines = ["import itertools", "import torch", "from torch import nn", ""]
    lines += [_CLASSES[v.model]] if v.model in _CLASSES else []
    # Not torch.manual_seed: it queues a traceback for every device that is not initialized.
    lines += [f"torch.default_generator.manual_seed({v.seed})", f"K = {v.k}", *_numbers(v), *_data(v)]
    model = _MODELS[v.model]
    if v.batch_norm:
        model = "nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))"
    double = ".double()" if v.double else ".bfloat16()" if v.has("GA902") else ""
    lines += [f"model = {model}{double}"]
    lines += [f"optimizer = {_OPTIMIZERS[v.optimizer].format('model')}"]
    if v.pair:
        lines += [f"head = nn.Linear(3, 3){double}", f"head_optimizer = {_OPTIMIZERS[v.optimizer].format('head')}"]
    if v.rate:
        lines += [
            f"critic = nn.Linear(4, 1){double}",
            "critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)",
        ]
    lines += _criterion(v)
    if v.amp == "scaler":
        lines += ["scaler = torch.amp.GradScaler('cpu', init_scale=64.0)"]
    if v.schedule:
        lines += [f"scheduler = torch.optim.lr_scheduler.{_scheduler(v)}"]
    if v.average:
        lines += ["average = torch.optim.swa_utils.AveragedModel(model)"]
    if v.spelling == "function":
        lines += ["", "def scaled(loss, parts):", "    return loss / parts", ""]
    return lines


def _numbers(v: Variant) -> list[str]:
    """The numbers that have their own names."""
    moduli = (v.log_every, v.eval_every, v.rate)
    every = (*v.objective.numbers, *(number for number in moduli if number is not None))
    return list(dict.fromkeys(f"{number.name} = {number.text}" for number in every if number.name))


def _scheduler(v: Variant) -> str:
    """The call that creates the schedule, with the length that it was made for."""
    if v.schedule == "decay":
        return "ExponentialLR(optimizer, 0.9)"
    batches = "len(loader)"
    if v.boundary == "chunks":
        length = batches if v.schedule == "steps" else f"{batches} * K"
    elif v.schedule == "steps":
        length = f"({batches} + K - 1) // K" if v.remainder else f"{batches} // K"
    else:
        length = batches
    return f"CosineAnnealingLR(optimizer, T_max={f'{v.epochs} * ({length})' if v.epochs > 1 else length})"


OUTLIER = 1000.0
"""A target so extreme that no loss without it is as large: 1,000 or 1,000,000, while normal losses are below 10."""

LARGEST_LOSS = {"never": "1e300", "window": "200.0", "batch": "200.0"}
"""The threshold above which a loss is too large, by what is rejected; "never" is one that no loss reaches.

A loss that diverges comes to more than a float32 holds within a few steps.
"""


def _dtype(v: Variant) -> str:
    return ", dtype=torch.float64" if v.double else ", dtype=torch.bfloat16" if v.has("GA902") else ""


def one_batch(v: Variant) -> str:
    """The expressions that create a batch in the loop."""
    return ", ".join(_tensors(v, str(v.rows[0]), _dtype(v)))


def _data(v: Variant) -> list[str]:
    """The batches, and the counts of units that a scaling uses."""
    if v.made_in_loop:
        return [f"n_batches = {v.count}"]
    lines = _batches(v.joins or v)
    if v.joins is not None:
        k = v.joins.k
        lines += [f"windows = [loader[s:s + {k}] for s in range(0, len(loader), {k})]"]
        lines += ["loader = [tuple(torch.cat(each) for each in zip(*window)) for window in windows]"]
    if v.scale in ("share", "total") and v.boundary in COUNTED:
        lines += [
            f"units = [{units_of(v, 'y')} for _, y in loader]",
            "totals = [sum(units[s:s + K]) for s in range(0, len(units), K)]",
        ]
    return lines


def _batches(v: Variant) -> list[str]:
    """The batches as they are drawn."""
    dtype = _dtype(v)
    times = v.k if v.boundary == "chunks" else 1
    rows = v.rows[:: v.k] if v.boundary == "chunks" else v.rows
    if v.data_loader:
        total = sum(rows) * times
        x, y = _tensors(v, str(total), dtype)
        lines = [
            f"dataset = torch.utils.data.TensorDataset({x}, {y})",
            f"loader = torch.utils.data.DataLoader(dataset, batch_size={rows[0] * times})",
        ]
    else:
        sizes = [n * times for n in rows]
        same = len(set(sizes)) == 1
        x, y = _tensors(v, str(sizes[0]) if same else "n", dtype)
        over = f"_ in range({len(sizes)})" if same else "n in sizes"
        lines = [] if same else [f"sizes = {sizes}"]
        lines += [f"loader = [({x}, {y})] * {v.count}" if v.has("GA902") else f"loader = [({x}, {y}) for {over}]"]
    lines += [f"loader[{at}][1].fill_({OUTLIER})" for at in v.outliers]
    if v.loss == "ignored tokens":
        ignored = [n * TOKENS - u for n, u in zip(v.rows, v.units, strict=True)]
        lines += [
            f"for (_, labels), hidden in zip(loader, {ignored}):",
            "    labels.view(-1)[:hidden] = -100",
        ]
    return lines


def _tensors(v: Variant, n: str, dtype: str) -> tuple[str, str]:
    x = f"torch.randint(0, 3, ({n}, {TOKENS}))" if v.model == "tied" else f"torch.randn({n}, 4{dtype})"
    if v.model == "tied":
        return x, f"torch.randint(0, 3, ({n}, {TOKENS}))"
    if v.loss in ("mse", "smooth l1"):
        return x, f"torch.randn({n}, 3{dtype})"
    return x, f"torch.randint(0, 3, ({n},))"


def units_of(v: Variant, y: str) -> str:
    """The units of a micro-batch, as a script counts them; rows are enough if only their share is needed."""
    if v.loss == "ignored tokens":
        return f"int(({y} != -100).sum())"
    rows = v.scale == "share" or v.units == v.rows
    return (f"len({y})", f"{y}.size(0)", f"{y}.shape[0]", f"{y}.numel()")[v.seed % 4 if rows else 3]


def _criterion(v: Variant) -> list[str]:
    reduction = "reduction='sum'" if v.scale == "total" else ""
    name = {"mse": "MSELoss", "smooth l1": "SmoothL1Loss"}.get(v.loss, "CrossEntropyLoss")
    return [] if v.loss == "functional" else [f"criterion = nn.{name}({reduction})"]
