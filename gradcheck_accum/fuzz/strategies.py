"""Hypothesis strategies: loop variants with planted mistakes, and data for a user's loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import strategies as st

import gradcheck_accum.fuzz.variants as v
from gradcheck_accum.fuzz.cases import AccumCase
from gradcheck_accum.fuzz.disguise import DISGUISES
from gradcheck_accum.fuzz.variants import OPERATORS, Number, Objective, Operator, Variant


def compatible(operators: Sequence[Operator]) -> bool:
    """Whether operators can be planted together: in different slots, and with compatible needs."""
    slots = [operator.slot for operator in operators]
    if len(set(slots)) < len(slots):
        return False
    return all(_allowed(operators, name) is None or _allowed(operators, name) for o in operators for name in o.needs)


def _allowed(operators: Iterable[Operator], name: str) -> frozenset[object] | None:
    """The values of a field that every operator allows; None if none of them restricts it."""
    needs = [o.needs[name] for o in operators if name in o.needs]
    return frozenset.intersection(*needs) if needs else None


_ALONE = frozenset({"GA304", "GA901", "GA902"})
"""Mistakes that hide others: no windows, no large batch to compare with, no exact sum."""

PAIRS = tuple(
    (one.name, other.name)
    for position, one in enumerate(OPERATORS.values())
    for other in list(OPERATORS.values())[position + 1 :]
    if compatible([one, other]) and not {one.name, other.name} & _ALONE
)
"""The pairs of mutations that can be planted together."""

_LONG = "GA902"
"""Takes as long as thirty of the others: drawn once for every sixteen draws of each of them."""

_SINGLES = (*[(name,) for name in OPERATORS if name != _LONG] * 16, (_LONG,))


class _Drawing:
    """Draws the fields of one variant, each from what its mutations and the earlier fields allow."""

    def __init__(self, draw: st.DrawFn, names: Sequence[str]) -> None:
        self._draw = draw
        self._operators = [OPERATORS[name] for name in names]
        self.names = frozenset(names)

    def needs(self, name: str) -> frozenset[object] | None:
        return _allowed(self._operators, name)

    def choose(self, name: str, choices: Iterable[Any]) -> Any:
        """One of ``choices`` for the field ``name``, the simplest first."""
        needs = self.needs(name)
        kept = tuple(choice for choice in choices if needs is None or choice in needs)
        return kept[0] if len(kept) == 1 else self._draw(_one_of(kept), label=name)

    def chance(self, name: str, one_in: int) -> bool:
        """True once in ``one_in`` draws, or as the mutations need it."""
        needs = self.needs(name)
        if needs is not None and len(needs) == 1:
            return bool(next(iter(needs)))
        # Hypothesis prefers the ends of a range, so rare values are put in its middle.
        return self._draw(_between(0, one_in), label=name) == (one_in + 1) // 2

    def number(self, name: str, low: int, high: int) -> int:
        return low if low == high else self._draw(_between(low, high), label=name)


@cache
def _one_of(choices: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    return st.sampled_from(choices)


@cache
def _between(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


@st.composite
def variants(draw: st.DrawFn, mutations: int | tuple[str, ...] | None = None, *, widened: bool = False) -> Variant:
    """Loop variants with ``mutations`` planted: that many, those of these names, or up to two.

    If ``widened``, K goes up to 9 and may be defined anywhere, objectives have constants and several losses, and loops
    do more than accumulate (`Variant.features`).
    """
    many = draw(st.sampled_from((0, 1, 1, 2)), label="mutations") if mutations is None else mutations
    if isinstance(many, tuple):
        names = many
    else:
        names = draw(st.sampled_from(((), _SINGLES, PAIRS)[many]), label="planted") if many else ()
    d = _Drawing(draw, names)
    boundary = d.choose("boundary", _boundaries(d))
    uneven = _uneven(d, boundary)
    low = _LONG in names
    least = 1 if not names and boundary in ("i + 1", "nested") else 2
    k = v.STAGNATING if low else d.number("k", least, 9 if widened else 4)
    # A window that is closed late mixes different divisors of two windows, and the intended one would be undefined.
    mixed = boundary == "counter" and "GA302" in names
    left = 0 if mixed else d.number("remainder", *_remainders(d, boundary, k))
    remainder = bool(left)
    tiny = not names and boundary in ("i + 1", "nested")
    windows = d.choose("windows", (2, 2, 2, 2, 3, 1, 0) if tiny else (2, 2, 2, 3))
    windows = 1 if low else 4 if "GA801" in names else 3 if "GA303" in names else windows
    count = windows * k + left
    batch_norm = "GA901" in names
    amp = d.choose("amp", ("", "", "", "scaler", "autocast") if not batch_norm else ("",))
    loss = d.choose("loss", _losses(d, uneven, batch_norm))
    model = d.choose("model", _models(loss, amp))
    pair = d.chance("pair", 8) and not uneven and not batch_norm and model not in ("tied",) and amp != "autocast"
    clears_first = d.chance("clears_first", 5) and boundary in (*v.INDEXED, *v.WHOLE, "next", "chunks", "running count")
    data_loader = d.chance("data_loader", 3) and loss != "ignored tokens" and boundary != "chunks" and count > 0
    rows = _rows(d, k, count, uneven, loss, data_loader, batch_norm, boundary)
    units = _units(d, rows, loss, uneven, model)
    if uneven and len(units) > 1 and len(set(units)) == 1:
        # A draw that was meant to be uneven is even: the first micro-batch gets another count.
        rows, units = _made_uneven(rows, units, loss)
    uneven = len(set(units)) > 1
    scale = d.choose("scale", ("steps",) if mixed else _scales(boundary, remainder, uneven))
    flush = _flush(d, boundary, remainder)
    drawn = Variant(
        k=k,
        rows=rows,
        units=units,
        epochs=1 if low else d.choose("epochs", _epochs(names, mixed, data_loader)),
        boundary=boundary,
        flush=flush,
        scale=scale,
        spelling=d.choose("spelling", _spellings(mixed, names)),
        model=model,
        loss=loss,
        optimizer=d.choose("optimizer", v.OPTIMIZERS),
        clearing=d.choose("clearing", v.CLEARINGS),
        clears_first=clears_first,
        # Clipping the values of gradients that have been cleared raises an error.
        clip=d.choose("clip", ("norm",) if {"GA202", "GA402"} <= d.names else ("", "", "norm", "value")),
        amp=amp,
        double=amp != "autocast" and not low and d.chance("double", 2),
        data_loader=data_loader,
        layout=d.choose("layout", _layouts(names)),
        pair=pair,
        schedule=d.choose("schedule", _schedules(d)),
        average=d.chance("average", 8),
        batch_norm=batch_norm,
        metrics=d.chance("metrics", 2),
        disguise=_disguise(d),
        seed=d.number("seed", 0, 999),
        mutations=d.names,
    )
    return _widened(d, drawn) if widened and not low else drawn


_OF_A_STEP = frozenset({"GA202", "GA203", "GA402", "GA501", "GA503", "GA801"})
"""The mistakes that can be made without accumulation."""

_OF_A_SCALE = frozenset(name for name, operator in OPERATORS.items() if operator.slot == "scale")


_THEMES = ("", "", "", "logs", "evaluates", "made in the loop", "two rates", "rejects", "rejects", "plain")
"""What a loop does in addition to accumulating over the batches of its loader."""


def _widened(d: _Drawing, drawn: Variant) -> Variant:
    """``drawn`` with some of the wider dimensions, if they are compatible with the rest of it."""
    theme = d.choose("theme", _THEMES if drawn.count else ("",))
    drawn = _with_room_for(theme, d, drawn)
    inline = drawn.layout in ("script", "function")
    numbered = inline and (drawn.boundary in v.COUNTED or drawn.boundary == v.PLAIN)
    drawn = replace(drawn, objective=_objective(d, drawn, numbered), k_from=d.choose("K from", _places(drawn)))
    match theme:
        case "logs" if numbered:
            return replace(drawn, log_every=_modulus(d, drawn, ("LOG_EVERY", "log_interval")))
        case "evaluates" if numbered:
            return replace(drawn, eval_every=_modulus(d, drawn, ("EVAL_EVERY",)))
        case "made in the loop" if _takes_its_own_data(drawn) and drawn.boundary in (*v.INDEXED, "continue", v.PLAIN):
            return replace(drawn, made_in_loop=True, data_loader=False)
        case "two rates" if _has_room_for_a_second(d, drawn):
            rates = [n for n in range(1, drawn.count + 1) if drawn.count % n == 0]
            name = d.choose("rate's name", ("critic_steps", ""))
            return replace(drawn, amp="", rate=Number(str(d.choose("rate", rates)), name))
        case "rejects" if d.names <= _OF_A_SCALE and drawn.boundary in (*v.INDEXED, *v.WHOLE, "continue", "next"):
            return _rejecting(d, drawn)
    return drawn


def _with_room_for(theme: str, d: _Drawing, drawn: Variant) -> Variant:
    """``drawn``, modified to allow ``theme`` in its loop, if its mistakes permit that."""
    if not theme:
        return drawn
    if drawn.layout not in ("script", "function"):
        drawn = replace(drawn, layout="script")
    if theme == "plain":
        return _plain(drawn) if d.names <= _OF_A_STEP and not drawn.uneven else drawn
    if d.names or drawn.boundary in (*v.INDEXED, *v.WHOLE):
        return drawn
    return replace(drawn, boundary="i + 1", flush="or last" if drawn.remainder else "")


def _has_room_for_a_second(d: _Drawing, drawn: Variant) -> bool:
    free = d.needs("amp") is None and not drawn.has("GA303")
    return free and _takes_its_own_data(drawn) and drawn.boundary in v.INDEXED


def _takes_its_own_data(drawn: Variant) -> bool:
    """Whether all micro-batches are alike, and nothing is counted in them beforehand."""
    counted = drawn.uneven or drawn.scale in ("share", "total")
    return not (counted or drawn.model == "tied" or drawn.has("GA502"))


_STEPS = 12
"""Steps of a plain loop: many more would be slow, and some of the losses grow."""


def _plain(drawn: Variant) -> Variant:
    """``drawn`` without accumulation: every micro-batch is a window of its own."""
    return replace(
        drawn,
        k=1,
        rows=drawn.rows[:_STEPS],
        units=drawn.units[:_STEPS],
        boundary=v.PLAIN,
        flush="",
        scale="whole",
        clears_first=False,
        schedule="",
        average=False,
    )


def _places(drawn: Variant) -> tuple[str, ...]:
    """Where K may be defined, given how it is passed around."""
    if drawn.boundary == v.PLAIN or drawn.layout == "class":
        return v.PLACES[:4]
    return tuple(place for place in v.PLACES if place != "argument" or drawn.layout == "function")


_UNLIKE = ("2", "3", "5", "7", "10", "0.5", "0.7", "0.1", "1.5")


def _number(
    d: _Drawing, drawn: Variant, what: str, names: Sequence[str], *, least: float = 0.1, most: float = math.inf
) -> Number:
    """A number for ``what``: half of the time another number of the same loop. The bounds keep losses from growing."""
    rows = drawn.rows[0] if drawn.rows else 2
    others = {drawn.k, rows, drawn.count, drawn.k - 1, drawn.k + 1, drawn.remainder, drawn.k * rows} - {0, 1}
    unlike = [text for text in _UNLIKE if least <= float(text) <= most]
    alike = [str(n) for n in sorted(others) if least <= n <= most] or ["2"]
    text = d.choose(what, (*unlike, *(alike * len(unlike))[: len(unlike)]))
    return Number(text, d.choose(f"{what}'s name", ("", "", *names)))


def _modulus(d: _Drawing, drawn: Variant, names: Sequence[str]) -> Number:
    """A whole number of micro-batches, half of the time the same as another number of the loop."""
    every = {drawn.k, *(int(n.value) for n in drawn.objective.numbers if n.value.denominator == 1)} - {0, 1}
    return Number(str(d.choose("modulus", (*sorted(every), 2, 5, 10))), d.choose("modulus's name", ("", *names)))


def _objective(d: _Drawing, drawn: Variant, numbered: bool) -> Objective:
    """The objective: half of the time a single loss and nothing else."""
    if d.names & {"GA901", "GA503"} or not d.chance("objective", 1):
        return Objective()
    kinds = ["constant", "constant", "constant", "after", "temperature", "penalty"]
    # Further losses are means over all outputs: their units must be the same.
    if not drawn.uneven and drawn.scale != "total":
        kinds += ["terms", "terms", *(["warm-up"] if numbered else [])]
    kind = d.choose("kind", kinds)
    # Another of its numbers already has that name.
    taken = {"temperature": "TEMPERATURE", "terms": "n_losses"}.get(kind)
    names = [name for name in (*v.NEUTRAL_NAMES, *v.TELLING_NAMES) if name != taken]
    constant, operation = None, "/"
    if kind in ("constant", "after") or d.chance("a constant too", 6):
        operation = d.choose("operation", ("/", "*"))
        constant = _number(d, drawn, "constant", names, most=10 if operation == "*" else math.inf)
    as_k = (drawn.k,) if drawn.k in (2, 3) else ()
    terms = d.choose("terms", (2, 3, *as_k)) if kind == "terms" else 1
    adds_up = terms == 1 or d.chance("sum", 3)
    mean = None if adds_up else Number(str(terms), d.choose("mean's name", ("", "n_losses")))
    return Objective(
        constant=constant,
        operation=operation,
        after=kind == "after",
        terms=terms,
        mean=mean,
        warm_up=_number(d, drawn, "warm-up", ("WARM_UP",)) if kind == "warm-up" else None,
        penalty=Number(d.choose("penalty", ("0.01", "0.1", "0.25")), "decay") if kind == "penalty" else None,
        temperature=_number(d, drawn, "temperature", ("TEMPERATURE",), least=0.5) if kind == "temperature" else None,
    )


def _rejecting(d: _Drawing, drawn: Variant) -> Variant:
    """``drawn``, modified to discard a window, or what there is of one, if its loss is too large."""
    flush = "or last" if drawn.flush == "after" and drawn.boundary in v.INDEXED else drawn.flush
    if drawn.boundary == "continue" and drawn.remainder:
        return drawn
    drawn = replace(drawn, flush=flush, schedule="", average=False, amp="", rejects="never")
    sure = d.names <= {"GA101", "GA102"} and not drawn.uneven and drawn.model != "tied" and not drawn.batch_norm
    kinds = ["never"]
    if sure and drawn.count >= 2 * drawn.k:
        kinds += ["window", *(["batch"] if drawn.boundary in v.INDEXED and drawn.k > 1 else [])]
    kind = d.choose("rejects what", kinds)
    if kind == "never":
        return drawn
    # Losses for which it is certain when they are too large.
    loss = d.choose("loss", ("mse", "smooth l1"))
    units = tuple(n * v.TOKENS for n in drawn.rows)
    drawn = replace(drawn, loss=loss, units=units, data_loader=False, objective=Objective())
    if drawn.scale == "total":
        drawn = replace(drawn, scale="share")
    at = drawn.k - 1 if kind == "window" else d.number("in its window", 0, drawn.k - 1)
    window = d.number("rejected window", 0, drawn.count // drawn.k - 1)
    return replace(drawn, rejects=kind, outliers=(window * drawn.k + at,))


def _boundaries(d: _Drawing) -> list[str]:
    needs_uneven = d.needs("uneven") == frozenset({True})
    needs_remainder = d.needs("remainder") == frozenset({True})
    # With counters, a window that is closed late needs a single K, and so no remainder and no other scaling.
    scales = d.needs("scale")
    mixed = "GA302" in d.names and (needs_uneven or needs_remainder or scales is None or "steps" not in scales)
    kept = [b for b in v.BOUNDARIES if not needs_uneven or b in (*v.COUNTED, *v.WHOLE)]
    if needs_remainder or d.needs("scale") is not None:
        kept = [b for b in kept if b in (*v.COUNTED, *v.WHOLE)]
    if mixed:
        kept = [b for b in kept if b != "counter"]
    if needs_remainder and d.needs("flush") is not None:
        kept = [b for b in kept if b != "continue"]
    return kept


def _uneven(d: _Drawing, boundary: str) -> bool:
    scales = d.needs("scale")
    if boundary == "counter" and "GA302" in d.names:
        return False
    if d.needs("uneven") == frozenset({False}) or boundary not in (*v.COUNTED, *v.WHOLE):
        return False
    if scales is not None and scales.isdisjoint(v.UNEVEN_SCALES):
        return False
    return d.chance("uneven", 120) or (scales is not None and scales <= v.UNEVEN_SCALES)


def _made_uneven(rows: tuple[int, ...], units: tuple[int, ...], loss: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if loss == "ignored tokens":
        return rows, (units[0] - 1 or 2, *units[1:])
    each = units[0] // rows[0]
    first = rows[0] % 4 + 1
    return (first, *rows[1:]), (first * each, *units[1:])


def _remainders(d: _Drawing, boundary: str, k: int) -> tuple[int, int]:
    needs = d.needs("remainder")
    flush = d.needs("flush")
    unflushed = boundary == "continue" and flush is not None and "after" not in flush
    if boundary not in (*v.COUNTED, *v.WHOLE) or needs == frozenset({False}) or unflushed:
        return 0, 0
    return (1 if needs == frozenset({True}) else 0), k - 1


def _losses(d: _Drawing, uneven: bool, batch_norm: bool) -> tuple[str, ...]:
    if batch_norm:
        return ("cross entropy",)
    return v.LOSSES if uneven else v.LOSSES[:-1]


def _models(loss: str, amp: str) -> tuple[str, ...]:
    if loss in ("tokens", "ignored tokens"):
        return ("tied",)
    return ("linear", "mlp") if amp == "autocast" else v.MODELS[:-1]


def _rows(
    d: _Drawing,
    k: int,
    count: int,
    uneven: bool,
    loss: str,
    data_loader: bool,
    batch_norm: bool,
    boundary: str,
) -> tuple[int, ...]:
    if not count:
        return ()
    low = 2 if batch_norm or data_loader or "GA102:rows" in d.names else 1
    size = d.number("rows", low, 4)
    if not uneven or loss == "ignored tokens":
        return (size,) * count
    if data_loader:
        return (*(size,) * (count - 1), d.number("last rows", 1, size - 1))
    return tuple(d.number("rows", 1, 4) for _ in range(count))


def _units(d: _Drawing, rows: tuple[int, ...], loss: str, uneven: bool, model: str) -> tuple[int, ...]:
    if loss == "ignored tokens":
        return tuple(n * v.TOKENS - d.number("ignored", 0, n * v.TOKENS - 1) for n in rows)
    return tuple(n * (v.TOKENS if loss in ("mse", "smooth l1", "tokens") else 1) for n in rows)


def _scales(boundary: str, remainder: bool, uneven: bool) -> tuple[str, ...]:
    if uneven:
        return tuple(sorted(v.UNEVEN_SCALES))
    if boundary not in (*v.COUNTED, *v.WHOLE):
        return ("steps", "gradients")
    every = ("window", "gradients") if remainder else ("steps", "window", "gradients")
    return every


def _flush(d: _Drawing, boundary: str, remainder: bool) -> str:
    if boundary not in v.COUNTED:
        return ""
    choices = ("after",) if boundary == "continue" else ("or last", "after")
    return str(d.choose("flush", choices if remainder else ("", *choices)))


def _spellings(mixed: bool, names: Sequence[str]) -> list[str]:
    """Without a visible division, 1/K may belong to the objective: then a scaling mistake is one of two readings."""
    ambiguous = mixed or "GA102" in names or "GA102:rows" in names
    return [spelling for spelling in v.SPELLINGS if spelling != "inverse" or not ambiguous]


def _epochs(names: Sequence[str], mixed: bool, data_loader: bool) -> tuple[int, ...]:
    # A run over a list shows no passes: which micro-batches belong together is then only known from the source.
    is_unseen = mixed or ("GA302" in names and not data_loader) or (len(names) > 1 and "GA201" in names[0] + names[1])
    # If the remainder is dropped, its unscaling is left over: that of the next pass then raises an error.
    return (1,) if is_unseen or {"GA301", "GA502"} <= set(names) else (1, 1, 1, 1, 2)


def _layouts(names: Sequence[str]) -> tuple[str, ...]:
    return v.LAYOUTS[:2] if "GA801" in names else v.LAYOUTS


def _schedules(d: _Drawing) -> tuple[str, ...]:
    """One loop in five has a schedule, or as the mutations need it."""
    return v.SCHEDULES if d.needs("schedule") is not None else (*("",) * 12, *v.SCHEDULES)


def _disguise(d: _Drawing) -> tuple[str, ...]:
    every = (*((one,) for one in DISGUISES), ("short names", "comments", "dead code"))
    # Most loops are not disguised: working on a syntax tree costs as much as running the loop.
    return tuple(d.choose("disguise", (((),) * 4 * len(every)) + every))


@st.composite
def accum_cases(draw: st.DrawFn) -> AccumCase:
    """A Hypothesis strategy for the cases of a training loop: N, the micro-batch size, K, epochs, ignored targets,
    dtype.

    Every micro-batch has at least one target that is not ignored, because a mean over none is not a number.
    """
    batch_size = draw(st.integers(1, 4), label="micro-batch")
    samples = draw(st.integers(1, 6 * batch_size), label="N")
    ignored: list[int] = []
    if draw(st.integers(0, 3), label="ignores targets") == 2:
        for start in range(0, samples, batch_size):
            last = min(start + batch_size, samples) - 1
            ignored += range(start, draw(st.integers(start, last), label="first target that counts"))
    return AccumCase(
        samples=samples,
        batch_size=batch_size,
        accumulation_steps=draw(st.integers(1, 4), label="K"),
        epochs=draw(st.integers(1, 2), label="epochs"),
        ignored=tuple(ignored),
        dtype=draw(st.sampled_from(("float32", "float64")), label="dtype"),
        seed=draw(st.integers(0, 99), label="seed"),
    )
