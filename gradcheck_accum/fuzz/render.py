"""Writes a variant as the source of a training script.

The script is assembled from statements, so that a mutation moves, drops or repeats one of them; its style (names,
comments, dead code) is changed afterwards on its syntax tree, by `gradcheck_accum.fuzz.disguise`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction

from gradcheck_accum.fuzz.disguise import disguised
from gradcheck_accum.fuzz.preamble import LARGEST_LOSS, one_batch, preamble, units_of
from gradcheck_accum.fuzz.variants import COUNTED, PLAIN, Variant

_CLIPS = {
    "norm": ("nn.utils.clip_grad_norm_(model.parameters(), {})", -2),
    "value": ("nn.utils.clip_grad_value_(model.parameters(), {})", -3),
}
"""The ways to clip, each with the power of ten that the gradient of a loss by itself exceeds."""

_LARGEST_K = 9


def _clip(v: Variant) -> str:
    """The clip, with a limit that every micro-batch's gradient exceeds, whatever the objective and K divide it by.

    Gradients that are never cleared are an exception: what the clip leaves of them, which a grad scaler divides by its
    scale, has to be more than rounding in the next window's, or the step is right.
    """
    call, power = _CLIPS[v.clip]
    if v.has("GA203"):
        return call.format(float(f"1e{power + 2 if v.amp == 'scaler' else power}"))
    o = v.objective
    divided = (o.temperature.value if o.temperature is not None else 1) / min(o.factor, Fraction(1))
    divided *= _LARGEST_K ** (2 if "GA102" in v.mutations else 1)
    return call.format(float(f"1e{power - math.ceil(math.log10(divided))}"))


def render(variant: Variant) -> str:
    """The source of ``variant``: a whole script."""
    script = _with_k_from(variant, _Writer(variant).script())
    if variant.made_in_loop:
        script = script.replace("len(loader)", "n_batches")
    return disguised(script, variant.disguise, variant.seed)


_K = re.compile(r"\bK\b")

_SETTINGS = {
    "config": ('config = {{"lr": 0.1, "accum": {}}}', 'config["accum"]'),
    "namespace": ("args = types.SimpleNamespace(lr=0.1, n_micro={})", "args.n_micro"),
}
"""For K as an entry or a field: the line that defines it, and the expression that reads it."""


def _with_k_from(v: Variant, script: str) -> str:
    """``script``, which uses a constant named K, with K from its place."""
    definition = f"K = {v.k}\n"
    place = "literal" if v.boundary == PLAIN else v.k_from
    if len(_K.findall(script)) == 1:
        return script.replace(definition, "")
    if place == "argument":
        script = script.replace("\ntrain(K)\n", f"\ntrain({v.k})\n")
        before, _, loop = script.partition("def train(K):")
        return script if len(_K.findall(before)) > 1 else f"{before.replace(definition, '')}def train(K):{loop}"
    if place == "literal":
        read, made = str(v.k), ""
    elif place in _SETTINGS:
        line, read = _SETTINGS[place]
        made = line.format(v.k) + "\n"
        script = script.replace("import torch\n", "import torch\nimport types\n") if place == "namespace" else script
    else:
        return _K.sub(place, script)
    # In these forms, K is not passed to a function.
    script = script.replace("def train(K):", "def train():").replace("\ntrain(K)\n", "\ntrain()\n")
    return _K.sub(read, script.replace(definition, made))


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


class _Writer:
    """Writes one variant; every method returns lines, unindented."""

    def __init__(self, variant: Variant) -> None:
        self.v = variant

    def script(self) -> str:
        v = self.v
        in_function = v.layout in ("function", "class")
        lines = [*preamble(v), *([] if in_function else self.counters()), ""]
        loop = self.passes()
        if v.layout == "script":
            lines += loop
        elif v.layout == "function":
            lines += ["def train(K):", *_indented([*self.counters(), *loop]), "", "train(K)"]
        elif v.layout == "helpers":
            lines += ["def micro_batch(x, y, divisor):", *_indented([*self.micro_batch(), self.returned()]), ""]
            lines += ["def update(divisor):", *_indented(self.update()), ""]
            lines += loop
        else:
            lines += ["class Trainer:"]
            lines += _indented(["def __init__(self, K):", "    self.K = K", ""])
            lines += _indented(
                ["def micro_batch(self, x, y, divisor):", *_indented([*self.micro_batch(), self.returned()]), ""]
            )
            lines += _indented(["def update(self, divisor):", *_indented(self.update()), ""])
            lines += _indented(["def fit(self):", *_indented(["K = self.K", *self.counters(), *loop]), ""])
            lines += ["Trainer(K).fit()"]
        return "\n".join(lines) + "\n"

    def counters(self) -> list[str]:
        """The counters of the loop."""
        return [*(["running = 0.0"] if self.v.metrics else []), *(["kept = 0.0"] if self.v.has("GA801") else [])]

    # One micro-batch

    def micro_batch(self) -> list[str]:
        """From the batch ``x, y`` to its gradients; the reduced loss is in ``raw``."""
        v = self.v
        lines = ["optimizer.zero_grad()"] if "GA201" in v.mutations else []
        lines += ["head_optimizer.zero_grad()"] if lines and v.pair else []
        out = "head(model(x))" if v.pair else "model(x)"
        target = "y"
        if v.model == "tied":
            out, target = f"{out}.flatten(0, 1)", "y.flatten()"
        forward = self.forward(out, target)
        if v.amp == "autocast":
            lines += ["with torch.autocast('cpu', dtype=torch.bfloat16):", *_indented(forward)]
        else:
            lines += forward
        if v.rejects == "batch":
            lines += self.rejection()
        lines += self.scaling()
        lines += ["scaler.scale(loss).backward()" if v.amp == "scaler" else "loss.backward()"]
        return lines

    def forward(self, out: str, target: str) -> list[str]:
        """From the model's outputs to ``raw``, the objective of one micro-batch."""
        v, o = self.v, self.v.objective
        lines: list[str] = []
        if o.terms > 1 or o.warm_up:
            lines, out = [f"out = {out}"], "out"
        given = f"{out} / {o.temperature.shown}" if o.temperature else out
        reduction = ", reduction='sum'" if v.scale == "total" else ""
        loss = (
            f"nn.functional.cross_entropy({given}, {target}{reduction})"
            if v.loss == "functional"
            else f"criterion({given}, {target})"
        )
        if o.several:
            parts = ["fit", "spread", "size"][: o.terms]
            lines += [f"fit = {loss}"]
            lines += ["spread = out.pow(2).mean()"] if o.terms > 1 or o.warm_up else []
            lines += ["size = out.abs().mean()"] if o.terms > 2 else []
            if o.warm_up:
                lines += [f"beta = min(1.0, {self.position()} / {o.warm_up.shown})"]
                parts += ["beta * spread"]
            if o.penalty:
                parts += [f"{o.penalty.shown} * sum(p.pow(2).sum() for p in model.parameters())"]
            loss = " + ".join(parts)
            loss = f"({loss}) / {o.mean.shown}" if o.mean else loss
        if o.constant and not o.after:
            whole = f"({loss})" if o.several and not o.mean else loss
            loss = f"{whole} / {o.constant.shown}" if o.operation == "/" else f"{o.constant.shown} * {whole}"
        return [*lines, f"raw = {loss}"]

    def rejection(self) -> list[str]:
        """Discards the window so far if its loss is too large."""
        rejected = [*self.clear(), "continue"]
        return [f"if raw.item() > {LARGEST_LOSS[self.v.rejects]}:", *_indented(rejected)]

    def shown(self) -> str:
        """The loss that is summed for display, as a number."""
        return "loss.item()" if self.v.has("GA802") else "raw.item()"

    def returned(self) -> str:
        return f"return {self.shown()}"

    def scaling(self) -> list[str]:
        """From ``raw`` to ``loss``."""
        constant = self.v.objective.constant
        if constant is None or not self.v.objective.after:
            return self.division()
        operation = "/" if self.v.objective.operation == "/" else "*"
        return [*self.division(), f"loss = loss {operation} {constant.shown}"]

    def division(self) -> list[str]:
        """The division, without those parts of the objective that follow it."""
        v = self.v
        again = " / K" if "GA102" in v.mutations else " / len(x)" if "GA102:rows" in v.mutations else ""
        if again and v.layout in ("class",):
            again = again.replace("K", "self.K")
        if v.has("GA101") or v.scale in ("gradients", "whole"):
            return [f"loss = raw{again}"]
        if v.scale == "share" and not v.has("GA104"):
            return [f"loss = raw * ({units_of(v, 'y')} / {self.divisor()}){again}"]
        by = self.divisor()
        lines = {
            "/": [f"loss = raw / {by}"],
            "statement": ["loss = raw", f"loss = loss / {by}"],
            "in place": ["loss = raw * 1", f"loss /= {by}"],
            "inverse": [f"loss = raw * (1 / {by})"],
            "method": [f"loss = raw.div({by})"],
            "function": [f"loss = scaled(raw, {by})"],
        }[v.spelling]
        return [*lines, *([f"loss = loss{again}"] if again else [])]

    def divisor(self) -> str:
        """What a loss is divided by, in a micro-batch's own code."""
        if self.v.layout in ("helpers", "class"):
            return "divisor"
        return self.divides_by()

    def divides_by(self) -> str:
        """What a loss is divided by, in the loop."""
        v = self.v
        if v.scale in ("share", "total") and not v.has("GA104"):
            if v.boundary in COUNTED:
                return f"totals[{self.position()} // K]"
            return f"sum({units_of(v, 't')} for _, t in window)"
        if v.scale == "steps" or v.has("GA103") or (v.has("GA104") and not v.remainder):
            return "K"
        if v.boundary in COUNTED:
            return f"min(K, len(loader) - {self.position()} // K * K)"
        return "len(window)"

    def position(self) -> str:
        """The index of a micro-batch in its pass, from 0."""
        return "(i - 1)" if self.v.boundary == "i from 1" else "i"

    # The update

    def update(self) -> list[str]:
        """What happens when a window is complete."""
        v = self.v
        lines: list[str] = []
        if v.scale == "gradients" and not v.has("GA101"):
            divisor = "divisor" if v.layout in ("helpers", "class") else self.window_length()
            lines += ["for p in model.parameters():", f"    p.grad.div_({divisor})"]
            lines += ["for p in head.parameters():", f"    p.grad.div_({divisor})"] if v.pair else []
        if v.amp == "scaler" and v.clip and not v.has("GA501"):
            lines += ["scaler.unscale_(optimizer)"]
        if v.clip and not v.has("GA401") and not v.has("GA402"):
            lines += [_clip(v)]
        if v.has("GA202"):
            lines += self.clear()
        if v.amp == "scaler" and not v.has("GA503"):
            lines += ["scaler.step(optimizer)", *(["scaler.step(head_optimizer)"] if v.pair else []), "scaler.update()"]
        else:
            lines += ["optimizer.step()", *(["head_optimizer.step()"] if v.pair else [])]
        misplaced = [_clip(v)] if v.has("GA402") else []
        lines += misplaced if v.clip == "value" else []
        if not v.clears_first and not any(v.has(code) for code in ("GA201", "GA202", "GA203")):
            lines += self.clear()
        lines += misplaced if v.clip == "norm" else []
        if v.schedule and not self.schedules_every_turn():
            lines += ["scheduler.step()"]
        if v.average and not v.has("GA602"):
            lines += ["average.update_parameters(model)"]
        return lines

    def schedules_every_turn(self) -> bool:
        """Whether the schedule moves at every micro-batch."""
        return self.v.has("GA601") or (self.v.schedule == "micro-batches" and not self.v.has("GA603"))

    def clear(self) -> list[str]:
        v = self.v
        call = {
            "optimizer": ["optimizer.zero_grad()"],
            "zeros": ["optimizer.zero_grad(set_to_none=False)"],
            "model": ["model.zero_grad()"],
            "none": ["for p in model.parameters():", "    p.grad = None"],
        }[v.clearing]
        if not v.pair or v.has("GA204"):
            return call
        both = {"optimizer": "head_optimizer.zero_grad()", "zeros": "head_optimizer.zero_grad(set_to_none=False)"}
        return [*call, both.get(v.clearing, "head.zero_grad()")]

    def window_length(self, flushed: bool = False) -> str:
        """The number of micro-batches in the window that is being closed; ``flushed`` after the loop."""
        v = self.v
        if not v.remainder or v.has("GA103"):
            return "K"
        if v.boundary not in COUNTED:
            return "len(window)"
        if flushed:
            return "(len(loader) % K)"
        return f"({self.position()} % K + 1)" if v.flush == "or last" else "K"

    # The loop

    def run_micro_batch(self) -> list[str]:
        """The loop's statements for one micro-batch."""
        v = self.v
        lines: list[str] = []
        if v.clears_first and not v.has("GA203"):
            lines += [f"if {self.position()} % K == 0:", *_indented(self.clear())] if v.boundary in COUNTED else []
        if v.layout in ("helpers", "class"):
            owner = "self." if v.layout == "class" else ""
            given = "1" if v.scale == "gradients" else self.divides_by()
            value = f"{owner}micro_batch(x, y, {given})"
            lines += [f"running += {value}" if v.metrics else value]
        else:
            lines += self.micro_batch()
            lines += [f"running += {self.shown()}"] if v.metrics else []
            lines += [f"(critic(x).pow(2).mean() / {v.rate.shown}).backward()"] if v.rate else []
        if v.has("GA502"):
            lines += [f"if {self.position()} % K == 0:", "    scaler.unscale_(optimizer)"]
        if v.has("GA801"):
            lines += ["kept = kept + model(x).mean()"] if v.layout in ("helpers", "class") else ["kept = kept + loss"]
        if v.has("GA401"):
            lines += [_clip(v)]
        return lines

    def every_turn(self) -> list[str]:
        """The statements at the end of every iteration."""
        v = self.v
        lines = ["optimizer.zero_grad()"] if "GA201:late" in v.mutations else []
        lines += ["head_optimizer.zero_grad()"] if lines and v.pair else []
        lines += ["scheduler.step()"] if v.schedule and self.schedules_every_turn() else []
        lines += ["average.update_parameters(model)"] if v.has("GA602") else []
        number = f"{self.position()} + 1" if self.v.boundary != "i from 1" else "i"
        number = f"({number})" if " " in number else number
        if v.rate:
            lines += [f"if {number} % {v.rate.shown} == 0:", "    critic_optimizer.step()"]
            lines += ["    critic_optimizer.zero_grad()"]
        if v.log_every:
            lines += [f"if {number} % {v.log_every.shown} == 0:", "    print('loss', raw.item())"]
        if v.eval_every:
            lines += [f"if {number} % {v.eval_every.shown} == 0:", "    model.eval()", "    with torch.no_grad():"]
            lines += ["        print('evaluated', model(x).float().mean().item())", "    model.train()"]
        return lines

    def run_update(self, flushed: bool = False) -> list[str]:
        """The loop's statements for a complete window."""
        v = self.v
        if v.rejects in ("never", "window") and not flushed:
            return [*self.rejection(), *self.update()]
        if v.layout in ("helpers", "class"):
            owner = "self." if v.layout == "class" else ""
            return [f"{owner}update({self.window_length(flushed)})"]
        lines = self.update()
        if flushed and v.scale == "gradients":
            lines = [line.replace("div_(K)", f"div_({self.window_length(flushed)})") for line in lines]
        return lines

    def passes(self) -> list[str]:
        v = self.v
        before = ["seen = 0"] if v.boundary == "running count" else []
        one = self.one_pass()
        passes = [f"for epoch in range({v.epochs}):", *_indented(one)] if v.epochs > 1 else one
        return [*before, *passes, *(self.report() if v.metrics and v.count else [])]

    def report(self) -> list[str]:
        """The output about the losses, at the end."""
        counts = [str(self.v.epochs)] * (self.v.epochs > 1) + ["len(loader)"] + ["K"] * (self.v.boundary == "chunks")
        by = " * ".join(counts)
        return [f"print('mean loss', running / {f'({by})' if len(counts) > 1 else by})"]

    def one_pass(self) -> list[str]:
        if self.v.boundary in COUNTED:
            return self.counted_pass()
        micro, update, turn = self.run_micro_batch(), self.run_update(), self.every_turn()
        first = self.clear() if self.v.clears_first and not self.v.has("GA203") else []
        match self.v.boundary:
            case "plain":
                v = self.v
                numbered = v.log_every or v.eval_every or v.made_in_loop or v.objective.warm_up
                return [
                    self.heading() if numbered else "for x, y in loader:",
                    *_indented([*self.drawn(), *first, *micro, *update, *turn]),
                ]
            case "nested":
                return [
                    f"batches = {'list(loader)' if self.v.data_loader else 'loader'}",
                    "for start in range(0, len(batches), K):",
                    "    window = batches[start:start + K]",
                    *_indented(first),
                    "    for x, y in window:",
                    *_indented(_indented([*micro, *turn])),
                    *_indented(update),
                ]
            case "islice":
                return [
                    "batches = iter(loader)",
                    "while window := list(itertools.islice(batches, K)):",
                    *_indented(first),
                    "    for x, y in window:",
                    *_indented(_indented([*micro, *turn])),
                    *_indented(update),
                ]
            case "next":
                return [
                    "batches = iter(loader)",
                    "for _ in range(len(loader) // K):",
                    *_indented(first),
                    "    for _ in range(K):",
                    "        x, y = next(batches)",
                    *_indented(_indented([*micro, *turn])),
                    *_indented(update),
                ]
            case "chunks":
                return [
                    "for large_x, large_y in loader:",
                    *_indented(first),
                    "    for x, y in zip(large_x.chunk(K), large_y.chunk(K)):",
                    *_indented(_indented([*micro, *turn])),
                    *_indented(update),
                ]
        return [
            "for x, y in loader:",
            *_indented([*(["if seen % K == 0:", *_indented(first)] if first else []), *micro]),
            "    seen += 1",
            "    if seen % K == 0:",
            *_indented(_indented(update)),
            *_indented(turn),
        ]

    def heading(self) -> str:
        """The header of a loop that numbers its micro-batches."""
        first = self.v.boundary == "i from 1"
        if self.v.made_in_loop:
            return "for i in range(1, len(loader) + 1):" if first else "for i in range(len(loader)):"
        return f"for i, (x, y) in enumerate(loader{', 1' if first else ''}):"

    def drawn(self) -> list[str]:
        """The creation of a micro-batch's data, if that is done in the loop."""
        return [f"x, y = {one_batch(self.v)}"] if self.v.made_in_loop else []

    def counted_pass(self) -> list[str]:
        v = self.v
        head, advance = [self.heading(), *_indented(self.drawn())], []
        before: list[str] = []
        if v.boundary == "counter":
            before, advance = ["count = 0"], ["count += 1"]
        elif v.boundary == "while":
            before = [f"batches = {'list(loader)' if v.data_loader else 'loader'}", "i = 0"]
            head, advance = ["while i < len(batches):", "    x, y = batches[i]"], ["i += 1"]
        skip = [f"if {self.position()} == {v.skipped}:", "    continue"] if v.has("GA303") else []
        body = [*skip, *self.run_micro_batch()]
        test = self.test()
        update = self.run_update()
        if v.has("GA304"):
            tail = [*update, f"if {test}:", "    window_done = True", *self.every_turn()]
        elif v.boundary == "counter":
            tail = [f"if {test}:", *_indented([*update, "count = 0"]), *self.every_turn()]
        elif v.boundary == "continue":
            tail = [*self.every_turn(), f"if not ({test}):", "    continue", *update]
        else:
            tail = [f"if {test}:", *_indented(update), *self.every_turn()]
        if v.boundary == "counter":
            tail = [*advance, *tail]
        elif v.boundary == "while":
            # The position in the window is read before the counter is incremented.
            tail = [*tail, *advance]
        lines = [*before, *head, *_indented([*body, *tail])]
        if v.flush == "after" and not v.has("GA301"):
            left = "count" if v.boundary == "counter" else "len(loader) % K"
            lines += [f"if {left}:", *_indented(self.run_update(flushed=True))]
        return lines

    def test(self) -> str:
        """The condition under which a window is complete."""
        v = self.v
        off = v.has("GA302")
        condition = {
            "i + 1": "i % K == 0" if off else "(i + 1) % K == 0",
            "i from 1": "(i + 1) % K == 0" if off else "i % K == 0",
            "K - 1": "i % K == 0" if off else "i % K == K - 1",
            "not modulo": "not i % K" if off else "not (i + 1) % K",
            "counter": "count > K" if off else "count == K",
            "while": "i % K == 0" if off else "(i + 1) % K == 0",
            "continue": "i % K == 0" if off else "(i + 1) % K == 0",
        }[v.boundary]
        if v.flush == "or last" and not v.has("GA301"):
            last = "i == len(loader)" if v.boundary == "i from 1" else "i + 1 == len(loader)"
            return f"{condition} or {last}"
        return condition
