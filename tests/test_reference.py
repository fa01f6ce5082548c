"""The true large batch run again: in chunks where it does not fit, with the loop's random numbers and layout."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from watching import trained

from gradcheck_accum.engine.joining import Layout
from gradcheck_accum.engine.program import Program
from gradcheck_accum.engine.reference import ReferenceEngine
from gradcheck_accum.engine.streaming import CoupledChunks, Streamer
from gradcheck_accum.engine.tape import Tape
from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

ROWS = 4


class Counted:
    """The most rows that were seen at once."""

    most = 0


class Small(nn.Module):
    """Runs out of memory on more than ``fits`` rows."""

    def __init__(self, inner: nn.Module, fits: int, error: Exception) -> None:
        super().__init__()
        self.inner, self.fits, self.error = inner, fits, error
        # Attributes are put back after a reference has run; what an object in them counts is not.
        self.sizes = Counted()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.fits:
            raise self.error
        self.sizes.most = max(self.sizes.most, len(x))
        out: torch.Tensor = self.inner(x)
        return out


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] . DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
]


def layers(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *more, nn.Tanh(), nn.Linear(8, 3))


def batches(count: int, rows: Sequence[int] = (ROWS,)) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    sizes = [rows[i % len(rows)] for i in range(count)]
    return [(torch.randn(n, 6), torch.randint(0, 3, (n,))) for n in sizes]


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def in_eights(
    model: nn.Module, data: Sequence[tuple[torch.Tensor, ...]], loss: Loss = F.cross_entropy, scale: float = 8
) -> VerifyResult:
    """The verdict on a loop over ``data``, eight micro-batches a window."""
    return trained(model, data, lambda model, x, y: loss(model(x), y), scale, steps=8)


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda e: f"{type(e).__name__}-{str(e)[:12]}")
def test_a_large_batch_that_does_not_fit_is_streamed_and_the_verdict_says_so(error: Exception) -> None:
    model = Small(layers(), 2 * ROWS, error)
    result = in_eights(model, batches(16))
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    assert "in chunks" in result.reference.kind
    assert any("does not fit in memory" in note and "4 chunks" in note for note in result.notes)
    # Chunks are as large as fit: the halves of 8 micro-batches twice.
    assert model.sizes.most == 2 * ROWS


def test_a_streamed_reference_still_finds_the_mistake() -> None:
    result = in_eights(Small(layers(), 8, MemoryError()), batches(16), scale=1)
    assert result.verdict is Verdict.DEVIATES
    assert [d.mistake.code for d in result.diagnosis] == ["GA101"]


def test_a_batch_coupled_model_is_not_streamed() -> None:
    result = in_eights(Small(layers(nn.BatchNorm1d(8)), 8, MemoryError()), batches(16))
    assert result.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION
    assert "a part of the large batch's gradient differs from the sum of its halves'" in result.reason
    assert "in chunks" not in result.reference.kind


def test_where_only_single_samples_fit_nothing_is_proven_and_the_verdict_says_so() -> None:
    result = in_eights(Small(layers(), 1, MemoryError()), batches(16, [1]))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "the large batch does not fit in memory, and chunks could not be shown to be equivalent" in result.reason
    assert "one by one" in result.reference.kind


def recorded(model: nn.Module, data: Sequence[tuple[torch.Tensor, ...]], loss: Loss) -> list[Program]:
    """How each micro-batch's loss was computed; the model is called as `verify` calls it."""
    tape, programs = Tape(), []
    with tape:
        for x, y in data:
            scores = tape.call_module(model, model, (x,), {})
            program = tape.program([loss(scores, y)])
            assert program is not None
            programs.append(program)
    return programs


def large_batch_in_float64(
    model: nn.Module, data: Sequence[tuple[torch.Tensor, ...]], loss: Loss
) -> list[torch.Tensor]:
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    model.double()
    gradient = torch.autograd.grad(loss(model(x.double()), y), list(model.parameters()))
    model.float()
    return list(gradient)


UNEVEN = [3, 7, 2, 4]

LOSSES: list[Loss] = [
    F.cross_entropy,
    lambda scores, y: F.cross_entropy(scores, y, reduction="sum") / 32,
    lambda scores, y: F.cross_entropy(scores, y, ignore_index=1),
    lambda scores, y: F.cross_entropy(scores, y) + 0.1 * scores.pow(2).mean(),
]


@pytest.mark.parametrize("loss", LOSSES, ids=["mean", "sum", "ignored targets", "two terms"])
@pytest.mark.parametrize("fits", [2, 3, 5, 16])
def test_a_stream_is_the_gradient_of_the_one_batch(loss: Loss, fits: int) -> None:
    data, model = batches(8, UNEVEN), layers()
    programs = recorded(Small(model, 1000, MemoryError()), data, loss)
    small = programs[0].modules[0]
    assert isinstance(small, Small)
    # Micro-batches of up to 7 rows: where fewer fit, they are cut too.
    small.fits = fits
    streamer = Streamer(ReferenceEngine())
    parameters = list(model.parameters())
    streamed = streamer.large_batch(programs, parameters, Layout(), torch.float32)
    expected = large_batch_in_float64(model, data, loss)
    assert all(g.dtype is torch.float64 for g in streamed.gradients)
    for got, right in zip(streamed.gradients, expected, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-7)
    assert streamed.proof < 1e-5


def test_terms_that_count_other_units_are_not_streamed() -> None:
    def loss(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(scores, y, ignore_index=1) + 0.1 * scores.pow(2).mean()

    model = layers()
    programs = recorded(model, batches(8), loss)
    with pytest.raises(Exception, match="count different units"):
        Streamer(ReferenceEngine()).large_batch(programs, list(model.parameters()), Layout(), torch.float32)


def test_chunks_of_a_coupled_model_are_refused_with_their_distance() -> None:
    model = layers(nn.BatchNorm1d(8))
    programs = recorded(model, batches(8), F.cross_entropy)
    with pytest.raises(CoupledChunks) as caught:
        Streamer(ReferenceEngine()).large_batch(programs, list(model.parameters()), Layout(), torch.float32)
    assert caught.value.distance > 1000 * caught.value.allowed


def by_hand(mask: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5 if mask else 0.0), nn.Linear(8, 3))


def test_dropout_is_drawn_again_as_the_loop_drew_it() -> None:
    # The masks of the micro-batches, each from the generator's state at that time, on the rows of one batch.
    model, data = by_hand(True), batches(8, UNEVEN)
    programs = recorded(model, data, F.cross_entropy)
    masks = []
    for program, (x, _) in zip(programs, data, strict=True):
        state = program.rng_states[0]
        assert state is not None
        torch.set_rng_state(state[0])
        masks.append(F.dropout(torch.ones(len(x), 8), 0.5))
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    loss = F.cross_entropy(model[2](model[0](x) * torch.cat(masks)), y)  # type: ignore[index]
    parameters = list(model.parameters())
    expected = torch.autograd.grad(loss, parameters)
    got = ReferenceEngine().large_batch(programs, parameters).gradients
    for one, right in zip(got, expected, strict=True):
        torch.testing.assert_close(one, right, rtol=1e-5, atol=1e-7)


def contrastive(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    one = F.normalize(scores)
    return F.cross_entropy(one @ one.T / 0.1, y)


@pytest.mark.parametrize(
    ("model", "loss"),
    [(by_hand(True), contrastive), (layers(nn.BatchNorm1d(8), nn.Dropout(0.1)), F.cross_entropy)],
    ids=["in-batch negatives", "BatchNorm"],
)
def test_dropout_does_not_hide_that_a_model_couples_its_batch(model: nn.Module, loss: Loss) -> None:
    result = in_eights(model, batches(16), loss)
    assert result.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION
    assert "one large batch" in result.reason or "the true large batch" in result.reason


def test_numbers_drawn_once_for_a_batch_are_no_coupling() -> None:
    class Warped(nn.Linear):
        """All samples get the same random bend."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * torch.rand(6))

    result = in_eights(Warped(6, 3), batches(16))
    assert result.verdict is Verdict.EQUIVALENT
    assert any("do not belong to individual rows" in note for note in result.notes)


def test_time_may_come_first() -> None:
    # (time, rows, features), as recurrent layers have it by default, and flat labels.
    torch.manual_seed(0)
    rnn, head = nn.RNN(3, 5), nn.Linear(5, 2)

    def loss(_: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        states, _ = rnn(x)
        return F.cross_entropy(head(states).view(-1, 2), y.reshape(-1))

    data = [(torch.randn(7, 4, 3), torch.randint(0, 2, (7, 4))) for _ in range(8)]
    result = trained(nn.ModuleList([rnn, head]), data, loss, steps=4)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
    assert "as one large batch" in result.reference.kind


def test_parts_of_a_batch_that_belong_together_row_by_row() -> None:
    # Instance images first, prior images after them: the large batch has all the instances first.
    torch.manual_seed(0)
    model = nn.Linear(6, 6)

    def loss(model: nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        own, prior = model(x).chunk(2)
        wanted, usual = target.chunk(2)
        return F.mse_loss(own, wanted) + 0.5 * F.mse_loss(prior, usual)

    result = trained(model, [(torch.randn(4, 6), torch.randn(4, 6)) for _ in range(8)], loss, steps=4)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
    assert "as one large batch" in result.reference.kind


def test_a_number_that_differs_between_micro_batches_is_not_taken_for_coupling() -> None:
    def loop() -> VerifyResult:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with observe() as observation:
            for i, (x, y) in enumerate(batches(8)):
                (F.cross_entropy(model(x) / (i + 1), y) / 4).backward()
                if (i + 1) % 4 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        return observation.result()

    result = loop()
    assert result.verdict is Verdict.EQUIVALENT
    assert any("a number or string that the loss is computed with differs" in note for note in result.notes)


class Heads(nn.Module):
    """Two tasks over one body: which of them it is says a word, or by the name that the data comes under."""

    def __init__(self, *, with_loss: bool) -> None:
        super().__init__()
        self.body, self.heads = nn.Linear(6, 8), nn.ModuleDict({"a": nn.Linear(8, 3), "b": nn.Linear(8, 3)})
        self.with_loss = with_loss

    def forward(self, given: torch.Tensor | dict[str, torch.Tensor], y: torch.Tensor, task: str = "") -> torch.Tensor:
        if isinstance(given, dict):
            ((task, given),) = given.items()
        scores: torch.Tensor = self.heads[task](torch.tanh(self.body(given)))
        return F.cross_entropy(scores, y) if self.with_loss else scores


@pytest.mark.parametrize("named", ["by a word", "by a key"])
@pytest.mark.parametrize("with_loss", [True, False])
def test_a_word_that_differs_between_micro_batches_is_not_taken_for_coupling(named: str, with_loss: bool) -> None:
    torch.manual_seed(0)
    model = Heads(with_loss=with_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe() as observation:
        for i, (x, y) in enumerate(batches(8)):
            task = "ab"[i % 2]
            out = model(x, y, task) if named == "by a word" else model({task: x}, y)
            ((out if with_loss else F.cross_entropy(out, y)) / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
    result = observation.result()
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
    assert any("a number or string that the loss is computed with differs" in note for note in result.notes)


class CastsItself(nn.Module):
    """Computes in bfloat16, whatever its loop does: Accelerate wraps a model's forward so."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers(nn.LayerNorm(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            scores: torch.Tensor = self.inner(x)
        return scores.float()


def test_autocast_inside_a_model_is_not_taken_for_coupling() -> None:
    result = in_eights(CastsItself(), batches(16))
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
    assert "as one large batch" in result.reference.kind


@pytest.mark.parametrize("written", ["half of its length", "split", "its end"])
@pytest.mark.parametrize("pairs", [1, 3])
def test_a_batch_that_the_loop_splits_in_halves_of_its_own_length(written: str, pairs: int) -> None:
    # Preferences: what was chosen first, what was rejected after it, so the large batch has all the chosen first.
    torch.manual_seed(0)
    model = nn.Linear(6, 1)

    def loss(model: nn.Module, chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
        scores = model(torch.cat([chosen, rejected])).squeeze(1)
        half = len(scores) // 2
        if written == "split":
            better, worse = scores.split([half, half])
        else:
            better, worse = scores[:half], scores[half:] if written == "its end" else scores[-half:]
        return -F.logsigmoid(0.3 * (better - worse)).mean()

    data = [(torch.randn(pairs, 6), torch.randn(pairs, 6)) for _ in range(8)]
    result = trained(model, data, loss, steps=4)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
    assert "as one large batch" in result.reference.kind


def test_halves_of_a_batch_whose_samples_are_compared_with_each_other() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 4)

    def loss(model: nn.Module, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        both = F.normalize(model(torch.cat([first, second])), dim=1)
        half = len(both) // 2
        return F.cross_entropy(both[:half] @ both[half:].T / 0.2, torch.arange(half))

    data = [(torch.randn(3, 6), torch.randn(3, 6)) for _ in range(8)]
    result = trained(model, data, loss, steps=4)
    assert result.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION


def test_what_takes_the_same_number_of_rows_of_each_batch_is_no_half_of_it() -> None:
    # Of every batch, however long, its two first rows against the others.
    torch.manual_seed(0)
    model = nn.Linear(6, 1)

    def loss(model: nn.Module, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        scores = model(x).squeeze(1)
        return F.softplus(scores[2:].logsumexp(0) - scores[:2].mean())

    data = [(torch.randn(5, 6), torch.randn(5, 6)) for _ in range(8)]
    result = trained(model, data, loss, steps=4)
    assert result.verdict is not Verdict.EQUIVALENT


class Ragged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 5), nn.Linear(5, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.words(words).mean(1))
        return scores


def test_windows_that_could_not_be_joined_are_let_go_at_once() -> None:
    # Of unlike lengths, micro-batches do not make one batch; nothing waits for Python to collect garbage all the same.
    torch.manual_seed(0)
    model = Ragged()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    gc.disable()
    try:
        with observe() as observation:
            for i in range(48):
                words, y = torch.randint(0, 9, (ROWS, 3 + i % 5)), torch.randint(0, 3, (ROWS,))
                (F.cross_entropy(model(words), y) / 4).backward()
                if i % 4 == 3:
                    optimizer.step()
                    optimizer.zero_grad()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            garbage = [one for one in gc.garbage if type(one) is torch.Tensor]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    result = observation.result()
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
    assert garbage == []
