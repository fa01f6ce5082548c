"""A page that was asked for is also written if the report is not read (`| head`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradcheck_accum import cli, output, streams
from gradcheck_accum.cli import main
from gradcheck_accum.results.comparison import CompareResult
from gradcheck_accum.results.verdict import VerifyResult


@pytest.mark.parametrize("command", [["verify", "train.py"], ["compare", "train.py", "--with", "1", "--with", "2"]])
def test_a_page_is_written_though_the_reader_of_the_report_has_gone(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError

    page = tmp_path / "page.html"
    monkeypatch.setattr(cli.verify, "_measured", lambda *_: VerifyResult.failed("train.py", "it ended"))
    monkeypatch.setattr("gradcheck_accum.comparing.compare_script", lambda *_, **__: CompareResult.failed("a", "b"))
    monkeypatch.setattr(output, "needs_for_page", lambda _: None)
    monkeypatch.setattr(output, "verify_page", lambda _: "the page")
    monkeypatch.setattr(output, "compare_page", lambda _: "the page")
    monkeypatch.setattr(streams, "write", gone)
    monkeypatch.setattr(streams, "discard_stdout", lambda: None)
    assert main([*command, "--output-format", "json", "--report", str(page)]) == 141
    assert page.read_text() == "the page"
