"""The suite says the same thing twice: what its tests draw depends on their source alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st


def test_every_test_draws_by_the_profile_of_the_suite(request: pytest.FixtureRequest) -> None:
    # Older Hypothesis (6.100, say) has the name as an attribute alone.
    name = settings.get_current_profile_name() if hasattr(settings, "get_current_profile_name") else None
    if (name or settings._current_profile) != "suite":
        pytest.skip("explores")
    assert settings.default is not None
    assert settings.default.derandomize and settings.default.deadline is None and settings.default.database is None
    for item in request.session.items:
        used = getattr(getattr(item, "obj", None), "_hypothesis_internal_use_settings", None)
        if used is not None:
            assert used.derandomize and used.deadline is None, item.nodeid


def drawn() -> list[int]:
    seen: list[int] = []

    @settings(max_examples=60, derandomize=True, database=None, phases=(Phase.generate,))
    @given(st.integers(0, 10**12))
    def draw(number: int) -> None:
        seen.append(number)

    draw()
    return seen


def test_what_is_drawn_does_not_depend_on_what_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = drawn()
    (tmp_path / "full_of_constants.py").write_text(f"NUMBERS = {list(range(10**9, 10**9 + 400))}\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("full_of_constants")
    try:
        assert drawn() == before
    finally:
        del sys.modules["full_of_constants"]
