"""verify on scripts that train through a framework, beside float64 arithmetic that knows nothing of verify.

What a step got is read off ``.grad`` by hooks of the test's own; what it should have got is computed from the weights
at the step's entry and the data that the loader gave, as one large batch in float64.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from gradcheck_accum.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

SCRIPTS = Path(__file__).parents[2] / "fixtures" / "frameworks"
CONDITIONS = ("equal", "unequal", "remainder", "clip")
ROWS, STEPS, LIMIT = 4, 4, 0.1
PACKAGES = {
    "accelerate_loop": "accelerate",
    "transformers_trainer": "transformers",
    "transformers_own_model": "transformers",
    "lightning_automatic": "lightning",
    "lightning_manual": "lightning",
    "fabric_loop": "lightning",
    "ignite_engine": "ignite",
    "timm_style": "torch",
    "sentence_similarity": "sentence_transformers",
    "trl_sft": "trl",
    "deepspeed_engine": "deepspeed",
}
RUNS_ON = {"ignite_engine", "deepspeed_engine"}
"""Their windows run on over the end of a pass."""

CLIPS_NOTHING = {"ignite_engine"}
"""Their own loop has no clip."""

every_script = pytest.mark.parametrize("name", PACKAGES)


@pytest.fixture(autouse=True)
def ready(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    package = PACKAGES[request.node.callspec.params["name"]]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if package == "deepspeed" and not (shutil.which("ninja") and shutil.which("g++")):
        pytest.skip("deepspeed compiles what it needs, and there is no compiler")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.syspath_prepend(str(SCRIPTS))


@dataclass
class Ground:
    """What happened, as the test's own hooks saw it: the batches in order, and each step's weights and gradients."""

    batches: list[Any] = field(default_factory=list)
    weights: list[dict[int, torch.Tensor]] = field(default_factory=list)
    gradients: list[dict[int, torch.Tensor]] = field(default_factory=list)


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


@contextlib.contextmanager
def on_the_ground(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    ground = Ground()
    known: set[int] = set()
    drawn = dataloader._BaseDataLoaderIter.__next__

    def draw(iterator: Any) -> Any:
        ground.batches.append(copy.deepcopy(batch := drawn(iterator)))
        return batch

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # The first to step is the script's own: verify steps copies.
        known.add(id(optimizer)) if not known else None
        if id(optimizer) in known:
            ground.weights.append({id(p): p.detach().clone() for p in _parameters(optimizer)})

    def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) in known:
            found = {id(p): p.grad.detach().clone() for p in _parameters(optimizer) if p.grad is not None}
            ground.gradients.append(found)

    monkeypatch.setattr(dataloader._BaseDataLoaderIter, "__next__", draw)
    handles = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
    try:
        yield ground
    finally:
        for handle in handles:
            handle.remove()


def run(path: Path, condition: str, monkeypatch: pytest.MonkeyPatch) -> tuple[VerifyResult, Ground, dict[str, Any]]:
    """A script under observation, with what the hooks saw and the names that it left behind."""
    arguments = ["equal", "clip"] if condition == "clip" else [condition]
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with quiet[0], quiet[1], on_the_ground(monkeypatch) as ground, observe(script=str(path)) as observation:
        left = runpy.run_path(str(path), run_name="__main__")
    return observation.result(), ground, left


def token_loss(model: nn.Module, batches: list[Any]) -> torch.Tensor:
    """The mean over all the targets of a window, of next-token prediction."""
    import toy

    losses = []
    for batch in batches:
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        if hasattr(model, "config"):
            # trl puts a forward of its own on the module.
            logits = type(model).forward(model, **inputs).logits[:, :-1]
        else:
            logits = toy.Model.forward(model, inputs["input_ids"][:, :-1])
        targets = batch["labels"][:, 1:]
        kept = targets != -100
        losses.append(-torch.log_softmax(logits, -1)[kept].gather(-1, targets[kept].unsqueeze(-1)).squeeze(-1))
    return torch.cat(losses).mean()


def similarity_loss(model: nn.Module, batches: list[Any]) -> torch.Tensor:
    """The mean over all the pairs of a window of (cosine - score)^2."""
    losses = []
    for batch in batches:
        first, second = (
            model({k.removeprefix(side): v for k, v in batch.items() if k.startswith(side)})["sentence_embedding"]
            for side in ("first_", "second_")
        )
        losses.append((torch.cosine_similarity(first, second) - batch["label"].double()) ** 2)
    return torch.cat(losses).mean()


def windows(name: str, condition: str) -> list[int]:
    """How many micro-batches the windows of two passes over the data hold."""
    if condition != "remainder":
        return [STEPS] * 4
    return [STEPS] * 5 if name in RUNS_ON else [STEPS, STEPS, 2] * 2


def true_gradients(name: str, model: nn.Module, ground: Ground, sizes: list[int]) -> list[torch.Tensor]:
    """The large batch's gradient at every step, in float64, flat."""
    loss: Callable[[nn.Module, list[Any]], torch.Tensor] = (
        similarity_loss if name == "sentence_similarity" else token_loss
    )
    own = [p for p in model.parameters() if p.requires_grad]
    found, start = [], 0
    for size, weights in zip(sizes, ground.weights, strict=True):
        exact = copy.deepcopy(model).double()
        targets = [p for p in exact.parameters() if p.requires_grad]
        with torch.no_grad():
            for target, parameter in zip(targets, own, strict=True):
                target.copy_(weights[id(parameter)])
        gradients = torch.autograd.grad(
            loss(exact, ground.batches[start : start + size]), targets, materialize_grads=True
        )
        found.append(torch.cat([g.reshape(-1) for g in gradients]))
        start += size
    assert start == len(ground.batches)
    return found


def seen_gradients(model: nn.Module, ground: Ground) -> list[torch.Tensor]:
    own = [p for p in model.parameters() if p.requires_grad]
    return [
        torch.cat([g.get(id(p), torch.zeros_like(p)).detach().double().reshape(-1) for p in own])
        for g in ground.gradients
    ]


DEVIATIONS: dict[tuple[str, str], tuple[str, float | None]] = {
    **{(name, "unequal"): ("GA104", None) for name in PACKAGES},
    **{("transformers_own_model", condition): ("GA101", 4.0) for condition in CONDITIONS},
    ("accelerate_loop", "remainder"): ("GA103", 0.5),
    ("lightning_automatic", "remainder"): ("GA103", 0.5),
}
"""What today's releases get wrong, with the ratio of the norms in the windows that show it where it is one number.

Everything else is right: ``transformers`` and ``trl`` count the targets of the whole window.
"""
for right in ("transformers_trainer", "trl_sft", "sentence_similarity"):
    del DEVIATIONS[right, "unequal"]
DEVIATIONS["transformers_own_model", "unequal"] = ("GA101 GA104", None)


@pytest.mark.parametrize("condition", CONDITIONS)
@every_script
def test_what_is_reported_is_what_happened(name: str, condition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result, ground, left = run(SCRIPTS / f"{name}.py", condition, monkeypatch)
    model: nn.Module = left["model"]
    sizes = windows(name, condition)
    truth, seen = true_gradients(name, model, ground, sizes), seen_gradients(model, ground)
    assert [w.micro_batches for w in result.windows] == sizes
    for window, wanted, got in zip(result.windows, truth, seen, strict=True):
        if condition == "clip" and name not in CLIPS_NOTHING:
            # What was clipped is measured before the clip: it is the clipped truth that the step must have got.
            assert window.grad_norm_ratio is not None
            wanted = wanted * window.grad_norm_ratio
            wanted = wanted * min(1.0, LIMIT / (float(wanted.norm()) + 1e-6))
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-7)
            continue
        assert window.grad_rel_error == pytest.approx(float((got - wanted).norm() / wanted.norm()), rel=1e-4, abs=2e-6)
        assert window.grad_norm_ratio == pytest.approx(float(got.norm() / wanted.norm()), rel=1e-4)
    codes, ratio = DEVIATIONS.get((name, condition), ("", None))
    assert {d.mistake.code for d in result.diagnosis} == set(codes.split()), result.reason
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT), result.reason
    if ratio is not None:
        shown = {index for d in result.diagnosis for index in d.windows}
        assert [result.windows[i].grad_norm_ratio for i in sorted(shown)] == pytest.approx(
            [ratio] * len(shown), rel=1e-4
        )


@dataclass(frozen=True)
class Twin:
    """A script with some of its text replaced.

    ``line`` is text of the line that the first diagnosis names, ``framework`` the package that it names.
    """

    name: str
    says: str
    replaced: tuple[tuple[str, str], ...]
    codes: str
    line: str = ""
    framework: str = ""
    condition: str = "equal"
    verdict: Verdict = Verdict.DEVIATES
    help: str = ""


HALVED_TRAINER = (
    "    trainer = {kind}(",
    """\
    class Dividing({kind}):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs) / STEPS

    trainer = Dividing(""",
)


def dividing(kind: str) -> tuple[str, str]:
    """A trainer of this kind whose compute_loss divides as well."""
    before, after = (text.replace("{kind}", kind) for text in HALVED_TRAINER)
    return before, after


TWINS = [
    Twin(
        "accelerate_loop",
        "divided by the user too",
        (("accelerator.backward(loss)", "accelerator.backward(loss / STEPS)"),),
        "GA102",
        "accelerator.backward(",
        "accelerate",
        help="leave the division to Accelerator.backward()",
    ),
    Twin(
        "accelerate_loop",
        "clipped without sync_gradients",
        ((" and accelerator.sync_gradients", ""),),
        "GA401",
        "accelerator.clip_grad_norm_(",
        "accelerate",
        "clip",
        help="accelerator.sync_gradients",
    ),
    Twin(
        "accelerate_loop",
        "cleared first",
        (
            ("            optimizer.zero_grad()\n", ""),
            ("            tokens, targets", "            optimizer.zero_grad()\n            tokens, targets"),
        ),
        "GA202",
        "optimizer.zero_grad()",
        "accelerate",
        help="call zero_grad() after step()",
    ),
    Twin(
        "accelerate_loop",
        "the tail made right by hand",
        (
            (
                "        with accelerator.acc",
                "        index = 1 + index if batch is not None else 0\n        with accelerator.acc",
            ),
            ("    for batch in loader:", "    index, left = -1, len(loader) % STEPS\n    for batch in loader:"),
            (
                "accelerator.backward(loss)",
                "accelerator.backward(loss * STEPS / left if index >= len(loader) - left else loss)",
            ),
        ),
        "",
        condition="remainder",
        verdict=Verdict.EQUIVALENT,
    ),
    Twin(
        "transformers_own_model",
        "a forward that takes no **kwargs",
        ((", **kwargs", ""),),
        "",
        condition="remainder",
        verdict=Verdict.EQUIVALENT,
    ),
    Twin(
        "transformers_own_model",
        "a forward that uses num_items_in_batch",
        (
            ("labels, **kwargs", "labels, num_items_in_batch=None, **kwargs"),
            (
                '{"loss": mean_loss(logits[:, :-1], labels[:, 1:])',
                '{"loss": torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), '
                'reduction="sum") / num_items_in_batch',
            ),
        ),
        "",
        condition="unequal",
        verdict=Verdict.EQUIVALENT,
    ),
    Twin(
        "transformers_own_model",
        "as it stands",
        (),
        "GA101",
        "trainer.train()",
        "transformers",
        help="Trainer hands num_items_in_batch to OwnModel.forward()",
    ),
    Twin(
        "transformers_trainer",
        "a compute_loss that divides as well",
        (dividing("Trainer"),),
        "GA102",
        "trainer.train()",
        condition="unequal",
    ),
    Twin(
        "lightning_automatic",
        "divided by the user too",
        (("return loss", "return loss / STEPS"),),
        "GA102",
        "trainer.fit(",
        "lightning",
        help="return the loss undivided",
    ),
    Twin(
        "lightning_automatic",
        "its own tail",
        (),
        "GA103",
        "trainer.fit(",
        "lightning",
        "remainder",
        help="Lightning divides by accumulate_grad_batches however many",
    ),
    Twin("lightning_manual", "not divided", ((" / length", ""),), "GA101", "self.manual_backward(loss)", "lightning"),
    Twin(
        "lightning_manual",
        "clipped at every micro-batch",
        (
            (
                "        if (index + 1) % STEPS",
                "        self.clip_gradients(optimizer, 0.05, 'norm')\n        if (index + 1) % STEPS",
            ),
        ),
        "GA401",
        "self.clip_gradients(optimizer, 0.05",
        "lightning",
    ),
    Twin(
        "fabric_loop",
        "divided by K in the tail too",
        ((" / length", " / STEPS"),),
        "GA103",
        "optimizer.step()",
        condition="remainder",
    ),
    Twin(
        "fabric_loop",
        "cleared at every micro-batch",
        (("        complete = ", "        optimizer.zero_grad()\n        complete = "),),
        "GA201",
        "optimizer.zero_grad()",
    ),
    Twin(
        "ignite_engine",
        "divided by the user too",
        (("model, optimizer, mean_loss,", "model, optimizer, lambda *own: mean_loss(*own) / STEPS,"),),
        "GA102",
        "trainer.run(",
        "ignite",
    ),
    Twin(
        "timm_style",
        "a tail divided by K",
        (("accum_steps = last_accum_steps", "pass"),),
        "GA103",
        "optimizer.step()",
        condition="remainder",
    ),
    Twin(
        "sentence_similarity",
        "a compute_loss that divides as well",
        (dividing("SentenceTransformerTrainer"),),
        "GA102",
        "trainer.train()",
        "transformers",
    ),
    Twin(
        "sentence_similarity",
        "in-batch negatives",
        (("CosineSimilarityLoss", "MultipleNegativesRankingLoss"), (', "score": score}', "}")),
        "GA901",
        "trainer.train()",
        verdict=Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION,
    ),
    Twin(
        "trl_sft",
        "a compute_loss that divides as well",
        (dividing("SFTTrainer"),),
        "GA102",
        "trainer.train()",
        "trl",
        "unequal",
    ),
    Twin(
        "deepspeed_engine",
        "divided by the user too",
        (("engine.backward(loss)", "engine.backward(loss / STEPS)"),),
        "GA102",
        "engine.backward(",
        "deepspeed",
    ),
]


@pytest.mark.parametrize(("name", "twin"), [(t.name, t) for t in TWINS], ids=[f"{t.name}: {t.says}" for t in TWINS])
def test_a_twin_of_a_script(name: str, twin: Twin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    for before, after in twin.replaced:
        assert before in source
        source = source.replace(before, after)
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    result, *_ = run(path, twin.condition, monkeypatch)
    assert result.verdict is twin.verdict, result.reason
    assert {d.mistake.code for d in result.diagnosis} == set(twin.codes.split())
    for found in result.diagnosis:
        assert found.where.path == str(path)
        assert twin.line in source.splitlines()[found.where.line - 1]
        assert found.framework.partition(" ")[0] == twin.framework
        assert twin.help in found.help
