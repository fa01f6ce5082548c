"""verify over two ranks whose weights fully_shard (FSDP2) spreads over them, on a CPU (gloo), started by torchrun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import fsdp
from torchrun import ROOT, launch, needs_ranks

FIXTURE = ROOT / "fixtures" / "distributed" / "fsdp.py"
WORKER = Path(__file__).parent / "shards_worker.py"

pytestmark = [
    *needs_ranks,
    pytest.mark.skipif(
        not hasattr(torch.cpu.Stream, "record_event"), reason="PyTorch's own fully_shard raises on a CPU (2.6)"
    ),
]
SHOWS_DIVISORS = hasattr(getattr(fsdp, "FSDPModule", None), "set_gradient_divide_factor")
"""Whether PyTorch's fully_shard tells what it divides gradients by: from 2.8 on. Else verify says that it does not."""

SHOWS_NONE = "PyTorch does not show what fully_shard divides by"
needs_divisors = pytest.mark.skipif(not SHOWS_DIVISORS, reason=SHOWS_NONE)

RIGHT = [
    "right",
    "right, replay asked for",
    "right, with a remainder",
    "right, of more weights than a sketch",
    "right, in float64",
    "right, computed in bfloat16",
    "right, computed and averaged in bfloat16",
    "right, in one piece",
    "right, kept whole after forward",
    "right, kept whole until the last backward",
    "right, sharded by columns",
    "right, with tied weights",
    "right, with a weight of one element",
    "right, with checkpoints",
    "right, clipped",
    "right, clipped by value",
    "right, with a grad scaler",
    "right, scaled by hand",
    "sum over all tokens",
    "sum over all tokens, summed over the ranks",
    "zeroed while it waits",
]

WRONG = {
    "unscaled": ["GA101"],
    "unscaled, of more weights than a sketch": ["GA101"],
    "unscaled, with a weight of one element": ["GA101"],
    "unscaled, with AdamW": ["GA101"],
    "unscaled and clipped, with AdamW": ["GA101"],
    "unscaled, with momentum": ["GA101"],
    "unscaled, with an optimizer that nobody knows": ["GA101"],
    "remainder divided by K, with AdamW": ["GA103"],
    "summed over the ranks": ["GA101"],
    "remainder divided by K": ["GA103"],
    "unequal tokens": ["GA104"],
    "zeroed every time": ["GA201", "GA701"],
    "zeroed every time, of more weights than a sketch": ["GA201", "GA701"],
    "remainder dropped": ["GA301", "GA701"],
    "remainder waits for the next pass": ["GA301"],
    "clipped early": ["GA401", "GA701"],
    "never synced": ["GA702"],
    "last one local": ["GA702"],
}

SLOW_ALONE = {"synced every time": ["GA701"], "clipped while it waits": ["GA402"]}
"""What changes no gradient."""

UNKNOWN = {
    "right, but the replay alone will do": "not replayed as one large batch: its weights are sharded over the ranks",
    "one rank changes its shard": "gradients were modified manually",
    "one rank scales its shard after the clip": "rank 1: the gradients were modified manually after clipping",
    "divided unevenly": "divided by different factors",
    "with a hook of its own": "does not average the gradients",
    "replicated and sharded": "in several ways (HSDP",
    "first layer alone": "some weights are sharded over the ranks",
    "sharded by hand": "fully_shard was not seen to gather them",
    "FSDP1": "FullyShardedDataParallel (FSDP1)",
    "FSDP1, replay asked for": "FullyShardedDataParallel (FSDP1)",
    "FSDP1, with its original parameters": "FullyShardedDataParallel (FSDP1)",
    "FSDP1, with its original parameters, replay asked for": "FullyShardedDataParallel (FSDP1)",
}

LINES = {
    "unscaled": {"GA101": "loss(run.model(x), y, window).backward()"},
    "remainder divided by K": {"GA103": "self.optimizer.step()"},
    "unequal tokens": {"GA104": "loss(run.model(x), y, window).backward()"},
    "zeroed every time": {"GA201": "run.optimizer.zero_grad()"},
    "clipped early": {"GA401": "nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)"},
    "clipped while it waits": {"GA402": "nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)"},
    "synced every time": {"GA701": "(cross_entropy(run.model(x), y) / K).backward()"},
    "never synced": {"GA702": "(cross_entropy(run.model(x), y) / K).backward()"},
}

IS_NEWER = tuple(int(number) for number in torch.__version__.split(".")[:2]) > (2, 13)
IN_BFLOAT16 = {"right, computed in bfloat16", "right, computed and averaged in bfloat16"}
"""Judged against the gradients that were computed in bfloat16, and not in float64."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two ranks measured of every case, in one launch."""
    if not SHOWS_DIVISORS:
        pytest.skip(SHOWS_NONE)
    written = tmp_path_factory.mktemp("shards") / "results.json"
    ended = launch(WORKER.parent, str(WORKER), str(written))
    assert ended.returncode == 0, ended.stderr
    return json.loads(written.read_text())


def test_every_case_is_expected(measured: dict[str, Any]) -> None:
    expected = {*RIGHT, *WRONG, *SLOW_ALONE, *UNKNOWN, "batch normalisation", "undisturbed"}
    assert measured.keys() == expected


@pytest.mark.parametrize("case", RIGHT)
def test_a_right_loop_is_equivalent(case: str, measured: dict[str, Any]) -> None:
    found = measured[case]
    assert (found["verdict"], found["codes"]) == ("equivalent", []), found["reason"]
    assert "shard by shard" in found["reference"]


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_loop_deviates_with_its_cause(case: str, measured: dict[str, Any]) -> None:
    found = measured[case]
    assert (found["verdict"], found["codes"]) == ("deviates", WRONG[case]), found["reason"]


@pytest.mark.parametrize("case", SLOW_ALONE)
def test_what_moves_no_gradient_is_told_all_the_same(case: str, measured: dict[str, Any]) -> None:
    found = measured[case]
    assert (found["verdict"], found["codes"]) == ("equivalent", SLOW_ALONE[case]), found["reason"]


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_can_not_be_compared_is_inconclusive_with_its_reason(case: str, measured: dict[str, Any]) -> None:
    found = measured[case]
    if "unable" in found:
        pytest.skip(f"PyTorch itself raises: {found['unable']}")
    assert found["verdict"] == "inconclusive"
    assert UNKNOWN[case] in found["reason"]


@pytest.mark.parametrize("case", LINES)
def test_the_line_is_the_loops_own(case: str, measured: dict[str, Any]) -> None:
    found = measured[case]["lines"]
    assert {code: found[code] for code in LINES[case]} == LINES[case]


@pytest.mark.parametrize("case", [c for c in (*RIGHT, *WRONG, *SLOW_ALONE) if c not in IN_BFLOAT16])
def test_what_is_measured_is_the_distance_from_the_large_batch(case: str, measured: dict[str, Any]) -> None:
    found = measured[case]
    assert found["truth"]
    for (error, ratio), (true_error, true_ratio) in zip(found["measured"], found["truth"], strict=True):
        # Of more weights than a sketch has buckets, an error is known to a few per cent.
        coarse = case == "zeroed every time, of more weights than a sketch"
        assert error == pytest.approx(true_error, rel=0.15 if coarse else 1e-5, abs=1e-6)
        assert ratio == pytest.approx(true_ratio, rel=0.15 if coarse else 1e-5)


MULTIPLES = [
    "unscaled",
    "unscaled, of more weights than a sketch",
    "unscaled, with a weight of one element",
    "unscaled, with AdamW",
    "unscaled and clipped, with AdamW",
    "unscaled, with momentum",
    "summed over the ranks",
]
"""Where the reference is a multiple of the gradient, in every window."""


@pytest.mark.parametrize("case", MULTIPLES)
def test_an_update_is_compared_where_the_reference_is_a_multiple_of_the_gradient(
    case: str, measured: dict[str, Any]
) -> None:
    found = measured[case]
    assert found["updates"] == pytest.approx(found["true_updates"], rel=1e-3, abs=1e-6)


def test_a_window_that_is_right_has_no_update_of_a_multiple(measured: dict[str, Any]) -> None:
    found = measured["remainder divided by K, with AdamW"]
    *right, wrong = found["updates"]
    assert set(right) == {None}
    assert wrong == pytest.approx(found["true_updates"][-1], rel=1e-3)


@pytest.mark.parametrize(
    "case",
    ["right", "unequal tokens", "zeroed every time", "last one local", "unscaled, with an optimizer that nobody knows"],
)
def test_no_update_is_compared_where_the_reference_is_not_known(case: str, measured: dict[str, Any]) -> None:
    assert set(measured[case]["updates"]) == {None}


def test_rounding_is_judged_by_the_dtype_that_adds_up(measured: dict[str, Any]) -> None:
    finer, coarser = (measured[case] for case in sorted(IN_BFLOAT16, key=len))
    assert (finer["dtype"], coarser["dtype"]) == ("float32", "bfloat16")
    assert max(finer["tolerance"]) < 1e-5 < 1e-3 < min(coarser["tolerance"])
    # PyTorch 2.15 averages bfloat16 over gloo without rounding it on the way.
    rounded = [error for error, _ in coarser["measured"] if error or not IS_NEWER]
    assert all(error > 1e-4 for error in rounded)


def test_clips_are_by_the_norm_over_all_shards(measured: dict[str, Any]) -> None:
    found = measured["right, clipped"]
    assert len(found["norms"]) == 3
    assert found["norms"] == pytest.approx(found["true_norms"], rel=1e-6)
    assert min(found["norms"]) > 0.1


def test_a_window_holds_the_micro_batches_of_all_ranks(measured: dict[str, Any]) -> None:
    assert measured["right, with a remainder"]["micro_batches"] == [4, 4, 2]
    assert measured["right, with a remainder"]["units"] == [24, 24, 12]


def test_what_waits_beside_the_gradients_weighs_nothing(measured: dict[str, Any]) -> None:
    assert measured["never synced"]["weights"] == [[0.0] * 4] * 3
    assert measured["last one local"]["weights"] == [[1.0, 0.0, 1.0, 0.0]] * 3


def test_the_replay_is_said_to_be_missing(measured: dict[str, Any]) -> None:
    (note,) = measured["right, replay asked for"]["notes"]
    assert note.startswith("not replayed as one large batch (its weights are sharded over the ranks)")
    assert measured["right"]["notes"] == []


def test_a_divide_factor_is_named_as_the_cause(measured: dict[str, Any]) -> None:
    (message,) = measured["summed over the ranks"]["messages"]
    assert message.startswith("the sum of the ranks' gradients is not divided by the number of ranks")


def test_batch_normalisation_needs_no_replay_to_be_seen(measured: dict[str, Any]) -> None:
    found = measured["batch normalisation"]
    assert (found["verdict"], found["codes"]) == ("not-equivalent-by-construction", ["GA901"])


def test_what_the_needless_averages_cost_is_told(measured: dict[str, Any]) -> None:
    weights = 8 * 16 + 16 + 16 * 3 + 3
    (told,) = (note for note in measured["synced every time"]["notes"] if "were not needed" in note)
    assert told.startswith(
        f"3 of 6 averages over the ranks were not needed: rank 0 exchanged {3 * 4 * weights / 1024:.3g} KiB"
    )
    assert told.endswith(" s for them")
    assert not any("were not needed" in note for case in RIGHT for note in measured[case]["notes"])


def test_a_watched_run_ends_with_the_weights_of_a_plain_one(measured: dict[str, Any]) -> None:
    assert measured["undisturbed"] == [True, True]


@pytest.mark.skipif(SHOWS_DIVISORS, reason="this PyTorch shows what fully_shard divides by")
def test_an_older_pytorch_is_the_reason(tmp_path: Path) -> None:
    ended = launch(ROOT, "-m", "gradcheck_accum", "verify", str(FIXTURE))
    assert "inconclusive" in ended.stdout
    assert "this version of PyTorch does not show what fully_shard divides" in " ".join(ended.stdout.split())


@needs_divisors
def test_the_script_is_compared_shard_by_shard(tmp_path: Path) -> None:
    ended = launch(ROOT, "-m", "gradcheck_accum", "verify", "--verbose", str(FIXTURE))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("equivalent: all 3 steps match the large-batch gradient") == 1
    assert "3 windows watched on 2 ranks" in ended.stdout
    assert "shard by shard" in " ".join(ended.stdout.split())
    assert ended.stderr.count("weights add up to") == 1
    plain = launch(ROOT, str(FIXTURE))
    assert plain.stdout.strip() in ended.stderr


@needs_divisors
@pytest.mark.thorough
def test_a_wrong_script_is_told_in_json(tmp_path: Path) -> None:
    source = FIXTURE.read_text(encoding="utf-8")
    assert source.count(" / held") == 1
    (tmp_path / "train.py").write_text(source.replace(" / held", ""), encoding="utf-8")
    ended = launch(tmp_path, "-m", "gradcheck_accum", "verify", "train.py", "--output-format", "json")
    assert ended.returncode == 1
    report = json.loads(ended.stdout)
    assert (report["verdict"], report["ranks"]) == ("deviates", 2)
    line = source.splitlines().index("        loss.backward()") + 1
    assert [(d["code"], d["line"]) for d in report["diagnosis"]] == [("GA101", line)]
    assert [w["grad_norm_ratio"] for w in report["windows"]] == pytest.approx([4.0, 4.0, 2.0], rel=1e-5)
