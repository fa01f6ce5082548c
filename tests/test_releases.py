"""Remedies for mistakes inside a library: by its release, and by what the run showed."""

from __future__ import annotations

import pytest

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.verify.watching.framework_releases import REPAIRS, SMOOTHED, UNCOUNTED, UNDIVIDED, repair_of
from gradcheck_accum.verify.watching.framework_remedies import Remark, in_place_of, with_remedy


@pytest.mark.parametrize(
    ("release", "code", "shown", "repaired"),
    [
        ("transformers 4.45.2", "GA104", (), "4.46.1"),
        ("transformers 4.46.1", "GA104", (), None),
        ("transformers 4.46.3", "GA101", (UNDIVIDED,), "4.48.0"),
        ("transformers 4.47.1", "GA101", (UNDIVIDED, UNCOUNTED), "4.48.0"),
        ("transformers 4.47.1", "GA101", (), None),
        ("transformers 4.48.3", "GA101", (UNDIVIDED, UNCOUNTED), "4.53.0"),
        ("transformers 4.48.3", "GA101", (SMOOTHED,), "5.15.0"),
        ("transformers 5.14.1", "GA104", (SMOOTHED,), "5.15.0"),
        ("transformers 5.15.0.dev0", "GA104", (SMOOTHED,), None),
        ("transformers 5.23.0", "GA101", (SMOOTHED, UNCOUNTED, UNDIVIDED), None),
        ("transformers 4.51.3", "GA301", (), "4.52.1"),
        ("transformers 4.54.1", "GA103", (), "4.55.0"),
        ("transformers 4.55.0", "GA103", (), None),
        ("transformers", "GA104", (), None),
        ("accelerate 1.0.1", "GA104", (), None),
        ("", "GA104", (), None),
    ],
)
def test_a_release_has_the_bugs_of_its_time(
    release: str, code: str, shown: tuple[str, ...], repaired: str | None
) -> None:
    found = repair_of(release, code, shown)
    assert (found.repaired if found else None) == repaired


def test_every_repair_says_where_it_is_known_from() -> None:
    for repair in REPAIRS:
        assert repair.source.startswith("https://github.com/")
        assert repair.codes <= CATALOGUE.keys()
        said = repair.advice(f"{repair.package} {repair.since}")
        assert repair.repaired in said
        assert said.endswith(f"upgrade, or {repair.instead}")


def diagnosis(code: str, framework: str) -> Diagnosis:
    where = Location("train.py", 9, through=framework)
    return Diagnosis(CATALOGUE[code], where, "a fact", "divide the loss", (0,), framework=framework)


REMARKS = {
    ("train.py", 9): Remark(
        backward_at="transformers/trainer.py:3606",
        divides_at="accelerate/accelerator.py:2238",
        shown=frozenset({UNDIVIDED}),
    )
}


def test_the_help_names_the_release_its_line_and_what_mends_it() -> None:
    told = with_remedy(diagnosis("GA101", "transformers 4.47.1"), REMARKS).help
    assert told.startswith("transformers 4.47.1 does not divide the loss")
    assert "fixed in 4.48.0 (https://github.com/huggingface/transformers/pull/35207)" in told
    assert "override Trainer.compute_loss()" in told
    assert told.endswith("(transformers 4.47.1 calls backward() at transformers/trainer.py:3606)")


def test_a_library_without_a_known_bug_is_named_with_its_line() -> None:
    remarks = {("train.py", 9): Remark(backward_at="someones/loop.py:12")}
    told = with_remedy(diagnosis("GA101", "someones 1.2"), remarks).help
    assert told == "divide the loss (someones 1.2 calls backward() at someones/loop.py:12)"


def test_a_mistake_of_the_users_own_is_helped_as_ever() -> None:
    assert with_remedy(diagnosis("GA101", ""), REMARKS).help == "divide the loss"


def test_whoever_trains_with_another_librarys_optimizers_is_told_how_to_use_pytorchs() -> None:
    assert "OptimWrapper" in in_place_of("fastai 2.7.19")
    assert "model.parameters()" in in_place_of("keras 3.15.1")
    assert "subclass of torch.optim.Optimizer" in in_place_of("")
