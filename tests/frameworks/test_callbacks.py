"""The callbacks for frameworks: what they log and when they speak, against float64 arithmetic of the tests' own."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from frameworks.ground import SCRIPTS, Ground, not_installed, on_the_ground, seen_gradients, true_gradients
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks
from torch.utils.data import DataLoader

import gradcheck_accum
from gradcheck_accum.results.verdict import VerifyResult

ROWS, STEPS, TARGETS = 4, 4, 8
"""Rows of a micro-batch, micro-batches of a window, targets of a row."""

ERROR, RATIO, UNITS = "accumulation/gradient_error", "accumulation/norm_ratio", "accumulation/units"


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The small model of the frameworks' scripts; no PyTorch function is left patched afterwards."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = torch.autograd.backward, torch.optim.Optimizer.zero_grad
    import toy

    yield toy
    assert (torch.autograd.backward, torch.optim.Optimizer.zero_grad) == before
    assert not _global_optimizer_post_hooks


def needs(package: str) -> Any:
    return pytest.mark.skipif(bool(not_installed(package)), reason=not_installed(package))


def expected(model: nn.Module, ground: Ground, sizes: list[int]) -> list[tuple[float, float]]:
    """The error and the ratio of norms of every step, by the tests' own arithmetic."""
    truth, seen = true_gradients("", model, ground, sizes), seen_gradients(model, ground)
    return [(float((g - t).norm() / t.norm()), float(g.norm() / t.norm())) for g, t in zip(seen, truth, strict=True)]


def check_metrics(logged: dict[str, float], wanted: tuple[float, float], units: int) -> None:
    assert set(logged) == {ERROR, RATIO, UNITS}
    assert logged[ERROR] == pytest.approx(wanted[0], rel=1e-4, abs=2e-6)
    assert logged[RATIO] == pytest.approx(wanted[1], rel=1e-4)
    assert logged[UNITS] == units


# Transformers


@pytest.fixture
def trainer_of(toy: Any, tmp_path: Path) -> Callable[..., Any]:
    from accelerate.state import AcceleratorState
    from transformers import Trainer, TrainingArguments

    # The next Accelerator of the process uses the settings of the previous one.
    AcceleratorState._reset_state(reset_partial_state=True)

    class OwnModel(toy.Model):  # type: ignore[misc,name-defined]
        def forward(self, input_ids: Any, labels: Any, **others: Any) -> Any:
            logits = super().forward(input_ids)
            return {"loss": toy.mean_loss(logits[:, :-1], labels[:, 1:]), "logits": logits}

    def make(*, right: bool, data: Any = None) -> Any:
        torch.manual_seed(0)
        model = OwnModel()
        if right:
            model.accepts_loss_kwargs = False
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=ROWS,
            gradient_accumulation_steps=STEPS,
            num_train_epochs=2,
            learning_rate=1e-2,
            max_grad_norm=0.0,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
        )
        return Trainer(model, arguments, train_dataset=data or toy.rows("equal"))

    return make


@needs("transformers")
def test_the_trainer_logs_every_second_window_and_all_that_it_logs_itself(trainer_of: Any) -> None:
    from gradcheck_accum.callbacks.transformers import AccumulationCallback

    trainer = trainer_of(right=False)
    trainer.add_callback(AccumulationCallback(every=2, on_deviation="warn", log=trainer.log))
    with (
        on_the_ground() as ground,
        pytest.warns(gradcheck_accum.AccumulationWarning, match="GA101 .*through transformers ") as given,
    ):
        trainer.train()
    assert {Path(one.filename).name for one in given if one.category is gradcheck_accum.AccumulationWarning} == {
        Path(__file__).name
    }
    history = trainer.state.log_history
    logged = {e["step"]: {k: v for k, v in e.items() if k.startswith("accumulation/")} for e in history if ERROR in e}
    assert sorted(logged) == [2, 4]
    assert [entry["step"] for entry in history if "loss" in entry] == [1, 2, 3, 4]
    wanted = expected(trainer.model, ground, [STEPS] * 4)
    assert [ratio for _, ratio in wanted] == pytest.approx([4.0] * 4, rel=1e-4)
    for step, metrics in logged.items():
        check_metrics(metrics, wanted[step - 1], STEPS * ROWS * TARGETS)


@needs("transformers")
def test_a_right_training_is_left_alone_and_a_wrong_one_stopped(trainer_of: Any) -> None:
    from gradcheck_accum.callbacks.transformers import AccumulationCallback

    plain, watched, wrong = trainer_of(right=True), trainer_of(right=True), trainer_of(right=False)
    plain.train()
    watched.add_callback(AccumulationCallback(every=2))
    watched.train()
    assert all(map(torch.equal, plain.model.state_dict().values(), watched.model.state_dict().values()))
    wrong.add_callback(AccumulationCallback(every=2))
    with pytest.raises(gradcheck_accum.AccumulationError, match="GA101"):
        wrong.train()
    assert wrong.state.global_step == 1  # the second step had not returned


@needs("transformers")
def test_a_training_that_raised_is_watched_until_the_callback_is_closed(trainer_of: Any, toy: Any) -> None:
    from gradcheck_accum.callbacks.transformers import AccumulationCallback

    class Broken(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            raise LookupError("no data")

    backward = torch.autograd.backward
    callback = AccumulationCallback()
    trainer = trainer_of(right=True, data=Broken(toy.rows("equal")))
    trainer.add_callback(callback)
    with pytest.raises(LookupError):
        trainer.train()
    assert torch.autograd.backward is not backward
    callback.close()
    assert torch.autograd.backward is backward


# Lightning


@pytest.fixture
def lightning_run(toy: Any) -> Callable[..., Any]:
    import lightning
    from lightning.pytorch.loggers.logger import Logger

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = toy.Model()

        def training_step(self, batch: Any, index: int) -> Any:
            tokens, targets = toy.shifted(batch)
            return toy.mean_loss(self.model(tokens), targets)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    class Kept(Logger):  # type: ignore[misc]
        name, version = "kept", 0

        def __init__(self) -> None:
            super().__init__()
            self.logged: dict[int, dict[str, float]] = {}

        def log_hyperparams(self, *others: Any, **named: Any) -> None: ...

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            if ERROR in metrics:
                self.logged[step or 0] = metrics

    def run(kind: str, callbacks: list[Any]) -> tuple[Any, Any]:
        torch.manual_seed(0)
        module, logger = Module(), Kept()
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=2,
            accumulate_grad_batches=STEPS,
            logger=logger,
            callbacks=callbacks,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module="lightning")
            trainer.fit(module, DataLoader(toy.rows(kind), batch_size=ROWS))
        return module.model, logger.logged

    return run


@needs("lightning")
def test_lightning_logs_the_remainder_that_it_divides_by_k(lightning_run: Any) -> None:
    from gradcheck_accum.callbacks.lightning import AccumulationCallback

    heard: list[VerifyResult] = []
    with on_the_ground() as ground:
        model, logged = lightning_run("remainder", [AccumulationCallback(every=3, on_deviation=heard.append)])
    wanted = expected(model, ground, [STEPS, STEPS, 2] * 2)
    assert sorted(logged) == [3, 6]
    for step, metrics in logged.items():
        assert wanted[step - 1][1] == pytest.approx(0.5, rel=1e-4)
        check_metrics(metrics, wanted[step - 1], 2 * ROWS * TARGETS)
    assert [[d.mistake.code for d in result.diagnosis] for result in heard] == [["GA103"], ["GA103"]]


@needs("lightning")
def test_lightning_trains_the_same_bits_where_it_is_right(lightning_run: Any) -> None:
    from gradcheck_accum.callbacks.lightning import AccumulationCallback

    plain, _ = lightning_run("equal", [])
    watched, logged = lightning_run("equal", [AccumulationCallback(every=1)])
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))
    assert sorted(logged) == [1, 2, 3, 4]
    assert all(metrics[ERROR] < 1e-5 for metrics in logged.values())


@needs("lightning")
def test_lightning_is_stopped_with_the_error(lightning_run: Any) -> None:
    from gradcheck_accum.callbacks.lightning import AccumulationCallback

    with pytest.raises(gradcheck_accum.AccumulationError, match="GA104"):
        lightning_run("unequal", [AccumulationCallback(every=1)])
    with pytest.raises(ValueError, match="at least 1"):
        AccumulationCallback(every=0)


# Ignite


@pytest.fixture
def engine_of(toy: Any) -> Callable[..., Any]:
    from ignite.engine import create_supervised_trainer

    def make() -> Any:
        torch.manual_seed(0)
        model = toy.Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        engine = create_supervised_trainer(
            model,
            optimizer,
            toy.mean_loss,
            prepare_batch=lambda batch, device, non_blocking: toy.shifted(batch),
            gradient_accumulation_steps=STEPS,
        )
        return model, engine

    return make


@needs("ignite")
def test_ignites_metrics_are_those_of_the_window(engine_of: Any, toy: Any) -> None:
    from ignite.engine import Events

    from gradcheck_accum.callbacks.ignite import AccumulationHandler

    model, engine = engine_of()
    heard: list[VerifyResult] = []
    logged: dict[int, dict[str, float]] = {}
    AccumulationHandler(every=2, on_deviation=heard.append).attach(engine)
    engine.add_event_handler(
        Events.ITERATION_COMPLETED(every=2 * STEPS),
        lambda: logged.update({engine.state.iteration: dict(engine.state.metrics)}),
    )
    with on_the_ground() as ground:
        engine.run(DataLoader(toy.rows("unequal"), batch_size=ROWS), max_epochs=2)
    wanted = expected(model, ground, [STEPS] * 4)
    assert sorted(logged) == [2 * STEPS, 4 * STEPS]
    for iteration, metrics in logged.items():
        # 8, 6, 4 and 2 targets a row
        check_metrics(metrics, wanted[iteration // STEPS - 1], ROWS * (8 + 6 + 4 + 2))
    assert [[d.mistake.code for d in result.diagnosis] for result in heard] == [["GA104"], ["GA104"]]


@needs("ignite")
@pytest.mark.parametrize("handled", [False, True])
def test_what_an_engine_raises_is_raised_or_handled_as_without_us(engine_of: Any, handled: bool) -> None:
    from ignite.engine import Events

    from gradcheck_accum.callbacks.ignite import AccumulationHandler

    def broken() -> Iterator[Any]:
        raise LookupError("no data")
        yield

    _, engine = engine_of()
    AccumulationHandler().attach(engine)
    seen: list[BaseException] = []
    if handled:
        engine.add_event_handler(Events.EXCEPTION_RAISED, lambda _, error: seen.append(error))
        engine.run(broken(), epoch_length=2)
        assert isinstance(seen[0], LookupError)
    else:
        with pytest.raises(LookupError):
            engine.run(broken(), epoch_length=2)


@needs("ignite")
def test_an_engine_that_is_terminated_is_no_longer_watched(engine_of: Any, toy: Any) -> None:
    from ignite.engine import Events

    from gradcheck_accum.callbacks.ignite import AccumulationHandler

    _, engine = engine_of()
    AccumulationHandler().attach(engine)
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=STEPS), engine.terminate)
    engine.run(DataLoader(toy.rows("equal"), batch_size=ROWS), max_epochs=2)


# a loop that Accelerate prepares


@needs("accelerate")
def test_a_loop_that_accelerate_prepares_is_watched_in_a_block(toy: Any) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=STEPS, cpu=True)
    model = toy.Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(toy.rows("remainder"), batch_size=ROWS)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    logged: list[dict[str, float]] = []
    heard: list[VerifyResult] = []
    options: dict[str, Any] = {"on_deviation": heard.append, "on_window": lambda result: logged.append(result.metrics)}
    with on_the_ground() as ground, gradcheck_accum.watch(every=3, **options):
        for _ in range(2):
            for batch in loader:
                with accelerator.accumulate(prepared):
                    tokens, targets = toy.shifted(batch)
                    accelerator.backward(toy.mean_loss(prepared(tokens), targets))
                    optimizer.step()
                    optimizer.zero_grad()
    wanted = expected(model, ground, [STEPS, STEPS, 2] * 2)
    assert len(logged) == 2
    for metrics, step in zip(logged, (3, 6), strict=True):
        check_metrics(metrics, wanted[step - 1], 2 * ROWS * TARGETS)
    assert [[d.mistake.code for d in result.diagnosis] for result in heard] == [["GA103"], ["GA103"]]


def test_a_framework_is_imported_by_its_own_module_alone() -> None:
    code = (
        "import sys, gradcheck_accum.callbacks, gradcheck_accum.callbacks.run; "
        "print({'transformers', 'lightning', 'ignite', 'accelerate'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
