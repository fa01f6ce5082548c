"""The gradient of the window's large batch, recomputed from the data that the loop used."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import nn

from gradcheck_accum.engine.checkpoints import Checkpointed, instead_of_checkpoints, run_as_they_are
from gradcheck_accum.engine.counts_in_data import Counts, counts_in, with_counts
from gradcheck_accum.engine.determinism import reference_settings, untouched, without_hooks, without_warnings
from gradcheck_accum.engine.joining import Layout, join, rows_of, with_all_rows
from gradcheck_accum.engine.loss_graph import LossReading, read_losses
from gradcheck_accum.engine.program import Program
from gradcheck_accum.engine.randomness import ByRows, NotByRows, set_random_state
from gradcheck_accum.engine.rank_local import NotAlone, alone, is_sharded
from gradcheck_accum.ledger.events import product_of

LARGE_BATCH = "one large batch"
STREAMED = "one large batch, in chunks"
MICRO_BATCHES = "micro-batches, one by one"

SHARDED = "its weights are sharded over the ranks"


class CannotReplay(Exception):
    """The recorded calls cannot be replayed as required; the message says why."""


class Refused(CannotReplay):
    """The script's own code does not accept the data as one batch."""


class DoesNotFit(CannotReplay):
    """There is not enough memory; ``chunk`` is the estimated number of micro-batches that fit."""

    def __init__(self, message: str, chunk: int | None = None) -> None:
        self.chunk = chunk
        super().__init__(message)


_Found = Sequence[torch.Tensor | None]
_Around = Callable[[int], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass: the gradient for each parameter, and the reading of the loss."""

    gradients: list[torch.Tensor]
    reading: LossReading


@dataclass(frozen=True, slots=True)
class ReferenceEngine:
    """Where and in which dtype references are computed; None means as in the loop."""

    device: torch.device | None = None
    dtype: torch.dtype | None = None

    @property
    def is_native(self) -> bool:
        """Whether references run on the loop's own modules, in their own dtype and on their own device."""
        return self.device is None and self.dtype is None

    def large_batch(
        self, programs: Sequence[Program], parameters: Sequence[torch.Tensor], layout: Layout | None = None
    ) -> Pass:
        """One pass over all micro-batches as one batch, with the random numbers that the loop drew for each of them.

        The loss has the factors of the first micro-batch. Raises CannotReplay.
        """
        layout = layout or Layout()
        self._check(programs)
        first, counts = programs[0], Counts()
        try:
            if layout.sizes:
                first = with_all_rows(programs, layout)
            elif any(program.constants != first.constants for program in programs):
                counts = counts_in(programs)
        except ValueError as error:
            raise CannotReplay(str(error)) from None
        draws = None
        if any(program.random for program in programs):
            rows = rows_of(programs, layout)
            if rows is None or layout.parts > 1:
                raise CannotReplay("random numbers cannot be reproduced row by row")
            draws = ByRows(rows)
        try:
            with _memory():
                leaves = join(programs, layout)
        except ValueError as error:
            raise CannotReplay(str(error)) from None
        except RuntimeError as error:
            raise CannotReplay(_in_our_words(error)) from None
        first = with_counts(first, counts, leaves)
        if draws is None:
            return self._pass(first, leaves, parameters)
        mode = draws

        def around(step: int) -> AbstractContextManager[None]:
            states = [program.rng_states[step] for program in programs]
            return mode.starting([s for s in states if s is not None] if all(states) else None)

        return self._pass(first, leaves, parameters, around, mode)

    def one_by_one(self, program: Program, parameters: Sequence[torch.Tensor]) -> Pass:
        """One micro-batch's pass, with the random numbers that the loop drew. Raises CannotReplay."""
        self._check([program])
        return self._pass(program, program.leaves, parameters, _drawn_again(program))

    def terms_one_by_one(self, program: Program, parameters: Sequence[torch.Tensor]) -> dict[str, list[torch.Tensor]]:
        """The gradient of each term of one micro-batch's loss, by the term's name. Raises CannotReplay."""
        self._check([program])
        found, reading = self._run(program, program.leaves, parameters, _drawn_again(program), None, _of_each_term)
        return {term.name: own for term, own in zip(reading.terms, found, strict=True)}

    @staticmethod
    def _check(programs: Sequence[Program]) -> None:
        if not all(program.is_intact() for program in programs):
            raise CannotReplay("the data was modified in place after it was used")
        if any(is_sharded(p) for program in programs for module in program.modules for p in module.parameters()):
            raise CannotReplay(SHARDED)

    def _pass(
        self,
        program: Program,
        leaves: list[torch.Tensor],
        parameters: Sequence[torch.Tensor],
        around: _Around | None = None,
        mode: ByRows | None = None,
    ) -> Pass:
        (found,), reading = self._run(program, leaves, parameters, around, mode, _of_the_whole)
        return Pass(found, reading)

    def _run(
        self,
        program: Program,
        leaves: list[torch.Tensor],
        parameters: Sequence[torch.Tensor],
        around: _Around | None,
        mode: ByRows | None,
        gradients: Callable[[torch.Tensor, Sequence[torch.Tensor], Program, LossReading], list[_Found]],
    ) -> tuple[list[list[torch.Tensor]], LossReading]:
        """Compute a loss, and the ``gradients`` of it or of its parts, for all parameters. Raises CannotReplay."""
        with untouched(program.modules), reference_settings(), without_warnings(), torch.enable_grad():
            try:
                with _memory():
                    if not self.is_native:
                        program, leaves, parameters = self._moved(program, leaves, parameters)
                    with alone(), mode or nullcontext(), instead_of_checkpoints(run_as_they_are):
                        loss = program.run(leaves, around)
                    # The mode would see Python numbers where the graph holds tensors.
                    # Nor is there a graph of one sample's loss, which has the factors of the loop's.
                    reading = LossReading(()) if program.mapped else read_losses([loss], {})
                    wanted = [p for p in parameters if p.requires_grad]
                    with alone(), mode or nullcontext(), without_hooks(wanted):
                        found = gradients(loss, wanted, program, reading)
            except CannotReplay:
                raise
            except (NotAlone, NotByRows) as error:
                raise CannotReplay(str(error)) from None
            except Exception as error:
                # The script's own code runs here, on a batch of another size: any error means that it cannot be
                # replayed.
                raise Refused(_in_our_words(error)) from error
        each = [dict(zip(map(id, wanted), own, strict=True)) for own in found]
        return [[_dense(own.get(id(p)), p) for p in parameters] for own in each], reading

    def _moved(
        self, program: Program, leaves: list[torch.Tensor], parameters: Sequence[torch.Tensor]
    ) -> tuple[Program, list[torch.Tensor], list[torch.Tensor]]:
        """Copies of modules, leaves and parameters in the engine's dtype and on its device."""
        if any(isinstance(module, Checkpointed) for module in program.modules):
            raise CannotReplay("a checkpointed function cannot be copied together with the modules it calls")
        memo: dict[int, object] = {}
        own = {id(m): copy.deepcopy(m, memo) for m in program.modules}
        copied = [copy.deepcopy(p, memo) for p in parameters]
        for module in own.values():
            module.to(device=self.device, dtype=self.dtype)
        for tensor in copied:
            tensor.data = self._move(tensor.data)
        moved_leaves = [copy.deepcopy(leaf, memo) if leaf.requires_grad else self._move(leaf) for leaf in leaves]
        steps = [
            (own[id(f)] if isinstance(f, nn.Module) else f, args, kwargs, None if self.dtype else autocast)
            for f, args, kwargs, autocast in program.steps
        ]
        return replace(program, steps=steps), moved_leaves, copied

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self.dtype if tensor.is_floating_point() else None
        return tensor.detach().to(device=self.device, dtype=dtype)


def _in_our_words(error: Exception) -> str:
    """What an error of the script's own code means here; its message only in parentheses."""
    own = f": {str(error).splitlines()[0]}" if str(error) else ""
    return f"a function that the loss calls does not accept this data as one batch ({type(error).__name__}{own})"


@contextmanager
def _memory() -> Iterator[None]:
    """Raises DoesNotFit if memory runs out inside the block, and frees what was allocated."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
    else:
        return
    # The error is gone here, and with it everything that its traceback kept alive.
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    raise DoesNotFit(f"the large batch does not fit in memory: {message}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is an out-of-memory error, on a GPU or on the host."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return any(words in text for words in ("out of memory", "not enough memory", "can't allocate memory"))


def coefficient(reading: LossReading) -> list[float | None]:
    """What each term of a loss is multiplied by after its reduction; None where that is unknown."""
    return [product_of(term.factors) for term in reading.terms]


def _drawn_again(program: Program) -> _Around:
    """Each step of a micro-batch with the random numbers that it drew in the loop."""

    def around(step: int) -> AbstractContextManager[None]:
        state = program.rng_states[step]
        if state is not None:
            set_random_state(state)
        return nullcontext()

    return around


def _of_the_whole(loss: torch.Tensor, wanted: Sequence[torch.Tensor], program: Program, _: LossReading) -> list[_Found]:
    return [_gradients(loss, wanted, program)]


def _of_each_term(
    loss: torch.Tensor, wanted: Sequence[torch.Tensor], program: Program, reading: LossReading
) -> list[_Found]:
    """One backward for each term, in which nothing comes back from the nodes that reduced the others."""
    nodes = reading.reductions
    if program.is_cached or program.mapped or not len({*nodes}) == len(nodes) == len(reading.terms):
        raise CannotReplay("the terms of its loss have no graphs of their own")
    found: list[_Found] = []
    for own in nodes:
        silent = [node.register_prehook(_nothing) for node in nodes if node is not own]
        try:
            found.append(torch.autograd.grad(loss, wanted, allow_unused=True, retain_graph=True))
        finally:
            for hook in silent:
                hook.remove()
    return found


def _nothing(gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
    return tuple(None if gradient is None else torch.zeros_like(gradient) for gradient in gradients)


def _gradients(loss: torch.Tensor, wanted: Sequence[torch.Tensor], program: Program) -> _Found:
    if not program.is_cached:
        return torch.autograd.grad(loss, wanted, allow_unused=True)
    # Its hook calls backward, which fills ``.grad`` of every tensor that requires a gradient.
    filled = {id(p): p for p in wanted} | {id(p): p for module in program.modules for p in module.parameters()}
    if any(p._post_accumulate_grad_hooks for p in filled.values()):
        raise CannotReplay("a hook on its parameters acts as soon as a gradient is computed")
    kept = [(p, p.grad) for p in filled.values()]
    try:
        for p, _ in kept:
            p.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        return [p.grad for p in wanted]
    finally:
        for p, gradient in kept:
            p.grad = gradient


def _dense(gradient: torch.Tensor | None, parameter: torch.Tensor) -> torch.Tensor:
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.layout is not torch.strided else gradient.detach()
