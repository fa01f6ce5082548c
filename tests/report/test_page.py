"""The page of verify and compare: what it says and in which order, that it needs nothing but itself, and its size."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from page_results import COMPARED, DEVIATING, EQUIVALENT, RESULTS, SCALE, SOURCE, result, right, window
from torchrun import launch

from gradcheck_accum import cli
from gradcheck_accum.cli import main
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.report.frame import Sources
from gradcheck_accum.results.comparison import CompareResult, Configuration, Difference
from gradcheck_accum.results.verdict import (
    Accepted,
    ByParameter,
    ParameterError,
    Verdict,
    VerifyResult,
    WindowReport,
)

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """What a page holds: its words, tags and attributes. Fails where an element is not closed by its own end."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words = ""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.words = f"{self.words} {' '.join(data.split())}".strip()

    def values(self, attribute: str) -> list[str]:
        return [found[attribute] or "" for _, found in self.tags if attribute in found]


def verify_page(made: VerifyResult, text: str = SOURCE) -> str:
    from gradcheck_accum.report.page import verify_page  # loads matplotlib: not where tests are only collected

    return verify_page(made, Sources({"train.py": text}))


def compare_page(made: CompareResult, text: str = SOURCE) -> str:
    from gradcheck_accum.report.page import compare_page

    return compare_page(made, Sources({"train.py": text}))


@functools.cache
def page_of(name: str) -> str:
    made = RESULTS[name]
    return compare_page(made) if isinstance(made, CompareResult) else verify_page(made)


def in_order(words: str, *parts: str) -> bool:
    """Whether a text contains these, one after another."""
    return re.search(".*".join(map(re.escape, parts)), words, re.DOTALL) is not None


# what it says


def test_the_verdict_comes_first_and_then_what_to_do() -> None:
    words = Page(page_of("deviating")).words
    assert in_order(
        words.partition("gradcheck-accum verify")[2],
        "deviates train.py 2 of 2 windows: GA101 [missing-loss-scaling]",
        "Do this",
        "divide the loss by 3",
        "train.py:3",
        "windows watched",
        "Causes",
        "it is not divided by 3",
        "windows 0-1",
        "SGD: 2 windows",
        "3 x 3.000",
        "Gradient error by window",
        "by parameter",
        "encoder.0.weight",
        "Memory and time",
        "the replay agrees",
        "Source",
        "loss.backward()",
        "GA101 missing-loss-scaling",
        "it is not divided by 3",
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("equivalent", ("equivalent train.py all 2 steps are right", "There is nothing to do")),
        (
            "open",
            (
                "inconclusive train.py 1 of 1 steps: no graph",
                "Do this",
                "state the coefficient",
                "To decide it",
                "gradcheck-accum compare train.py",
                "could not be read",
                "No gradient error was measured.",
                "The drift of the weights was not measured",
                "Not measured: no window of several micro-batches was run as one large batch.",
            ),
        ),
        ("error", ("error train.py ValueError: no data", "No window was observed.")),
        (
            "compared",
            (
                "deviates train.py 2 of 2 steps",
                "divide the loss by 3",
                "reference --accum 1 (2 steps of 1 micro-batch, 15 rows together)",
                "deviates 2 of 2 steps",
                "verify disagrees:",
                "loss 3 times too large",
                "SGD: 2 steps",
                "Gradient error by step",
                "Drift of the weights",
                "a note on it",
                "The same run as seen by verify: --accum 3",
                "3 x 3.000",
                "encoder.0.weight",
            ),
        ),
    ],
)
def test_every_kind_of_result_has_a_page(name: str, said: tuple[str, ...]) -> None:
    assert in_order(Page(page_of(name)).words, *said)


def test_nothing_that_was_not_measured_is_drawn() -> None:
    assert 'class="chart"' not in page_of("open")
    assert "nan" not in page_of("open")
    assert page_of("deviating").count('class="chart"') == 3  # by window, by parameter, cost: no drift


def test_several_optimizers_and_ranks_have_each_their_own() -> None:
    both = result(window(0), right(1, optimizer="AdamW", line=6), ranks=2)
    words = Page(verify_page(both)).words
    assert in_order(words, "ranks 2", "SGD: 1 window", "3 x 3.000", "AdamW: 1 window", "3 x 1.000")
    assert in_order(words, "SGD steps here", "AdamW steps here")


def test_what_is_accepted_is_shown_and_is_nothing_to_do() -> None:
    windows = (window(0, accepted=("GA101",)),)
    made = replace(
        EQUIVALENT, windows=windows, accepted=(Accepted(SCALE, "settings"),), reason="as accepted", diagnosis=()
    )
    words = Page(verify_page(made)).words
    assert in_order(words, "There is nothing to do", "Accepted", "accepted by settings", "deviates (accepted)")


# that it needs nothing but itself


@pytest.mark.parametrize("name", RESULTS)
def test_it_runs_no_script_and_loads_nothing(name: str) -> None:
    page = Page(page_of(name))
    tags = [tag for tag, _ in page.tags]
    assert not {"script", "iframe", "object", "embed", "img", "form", "base"} & set(tags)
    assert page.values("src") == []
    assert all(value.startswith("#") or value == "data:," for value in page.values("href"))
    assert not [key for _, found in page.tags for key in found if key.startswith("on")]
    assert "default-src 'none'" in page_of(name)
    assert "http" not in re.sub(r"http-equiv", "", page_of(name))


@pytest.mark.parametrize("name", RESULTS)
def test_names_are_unique_and_links_lead_somewhere(name: str) -> None:
    page = Page(page_of(name))
    names = page.values("id")
    assert len(names) == len(set(names))
    assert {value[1:] for value in page.values("href") if value.startswith("#")} <= set(names)
    for attribute in ("aria-labelledby",):
        assert {one for value in page.values(attribute) for one in value.split()} <= set(names)
    used = re.findall(r"url\(#([^)]+)\)", page_of(name))
    assert set(used) <= set(names)


@pytest.mark.parametrize("name", RESULTS)
def test_every_picture_says_what_it_shows(name: str) -> None:
    page = Page(page_of(name))
    for tag, found in page.tags:
        if tag == "svg":
            assert found.get("aria-hidden") == "true" or (found.get("role") == "img" and found.get("aria-labelledby"))
    # Colors are the page's own, in light and in dark.
    charts = "".join(re.findall(r"<svg viewBox.*?</svg>", page_of(name), re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}\b", charts)


HOSTILE = "</pre></code><script>alert(1)</script><img src=x onerror=alert(1)> \" ' & {{ 7 * 7 }} {% raw %} $\\frac{"
TURNED = "access = 'user\u202e\u2066# admin\u2069'\x00\x1b[31m\ud800"


def test_text_of_the_script_never_breaks_out_of_it() -> None:
    where = Location("train.py", 2)
    said = replace(SCALE, where=where, said=HOSTILE, help=HOSTILE, framework=HOSTILE)
    named = ByParameter(1, (ParameterError(HOSTILE + TURNED, (2,), 1.0, 1.0),))
    made = result(
        window(0, optimizer=HOSTILE, by_parameter=named, reason=HOSTILE),
        reason=HOSTILE,
        script=HOSTILE,
        diagnosis=(said,),
        notes=(HOSTILE + TURNED,),
        help=HOSTILE,
        settled_by=HOSTILE,
        device=HOSTILE,
    )
    for html in (
        verify_page(made, (f"# {HOSTILE}\nx = '{HOSTILE}'  # {TURNED}\n")),
        compare_page(
            replace(
                COMPARED,
                script=HOSTILE,
                reason=HOSTILE,
                compared=(
                    replace(
                        COMPARED.compared[0],
                        configuration=Configuration(HOSTILE, 3, 15, 2),
                        differences=(Difference(HOSTILE, HOSTILE, "train.py", 1),),
                        notes=(HOSTILE,),
                        watched=made,
                    ),
                ),
            ),
            HOSTILE,
        ),
    ):
        page = Page(html)
        assert not {"script", "img"} & {tag for tag, _ in page.tags}
        assert not [key for _, found in page.tags for key in found if key.startswith("on")]
        assert "{{ 7 * 7 }}" in page.words
        assert not set("\u202e\u2066\u2069\x00\x1b\ud800") & set(html)
        html.encode("utf-8")


def test_what_turns_text_around_is_shown() -> None:
    html = verify_page(result(window(0), diagnosis=(replace(SCALE, where=Location("train.py", 1)),)), TURNED)
    assert "&lt;U+202E&gt;" in html
    assert "\N{SYMBOL FOR ESCAPE}[31m" in html


# how large it is

MANY = 20_000


def unlike(index: int) -> WindowReport:
    """A window like no other in its numbers, and one of fifty kinds."""
    own, line = 1 + (index * 7919 % MANY) / MANY, 1 + index % 50
    return window(
        index,
        line=line,
        weights=(own, 1.0, 2.0),
        grad_norm_ratio=own,
        grad_rel_error=own,
        drift=own / 9,
        reason=f"number {index}",
    )


@pytest.mark.parametrize("kind", ["alike", "unlike", "two kinds"])
def test_a_long_run_has_a_short_page_that_says_what_it_leaves_out(kind: str) -> None:
    if kind == "unlike":
        windows = [replace(unlike(i), verdict=Verdict.INCONCLUSIVE) for i in range(MANY)]
    else:
        every = 100 if kind == "two kinds" else MANY + 1
        windows = [window(i) if i % every == every - 1 else right(i) for i in range(MANY)]
    html = verify_page(result(*windows, notes=tuple(f"note {i}" for i in range(1000))))
    assert len(html) < 200_000
    words = Page(html).words
    assert "20,000" in words
    assert "each point is the largest error of up to 125 windows" in words
    assert "more notes" in words
    assert ("more reasons" in words) is (kind == "unlike")
    # Every window is shown, counted with one that is like it, or said not to be shown.
    picture = words[words.index("The ledger") : words.index("Gradient error by window")]
    shown = len(re.findall("(?:deviates|equivalent|inconclusive)", picture))
    like = sum(map(int, re.findall(r"(\d+) more windows? like \d+ \(gradient error up to", picture)))
    left = sum(map(int, re.findall(r"(\d+) more windows not shown \(gradient error up to", picture)))
    assert shown == {"alike": 2, "two kinds": 4, "unlike": 32}[kind]
    assert shown + like + left == MANY
    assert (left > 0) is (kind == "unlike")


def test_a_long_window_has_a_short_row() -> None:
    uneven = tuple(0.25 if i == 700 else 1.0 for i in range(1024))
    html = verify_page(result(window(0, weights=uneven, micro_batches=1024)))
    picture = html[html.index('class="ledger"') : html.index('class="legend"')]
    assert picture.count('class="cell ') == 32
    assert picture.count("w-little") == 1
    assert "A cell stands for up to 32 gradients" in html


def test_many_optimizers_are_not_all_drawn() -> None:
    windows = [window(i, optimizer=f"SGD #{i}") for i in range(300)]
    html = verify_page(result(*windows))
    assert len(html) < 300_000
    assert in_order(Page(html).words, "SGD #5: 1 window", "SGD #6: 1 deviates", "more optimizers")


def test_a_long_file_is_shown_around_its_places() -> None:
    text = "".join(f"x{i} = {i}\n" for i in range(1, 2001))
    where = (Location("train.py", 700), Location("train.py", 1300))
    html = verify_page(result(window(0), diagnosis=tuple(replace(SCALE, where=one) for one in where)), text)
    words = Page(html).words
    assert in_order(words, "x700 = 700", "⋯ 587 lines", "x1300 = 1300", "⋯ 694 lines after it")
    assert "x900 = 900" not in words


# the door


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def measured(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs nothing: what was run is noted, and the result is at hand."""
    runs: list[str] = []

    def run(options: Any, told: dict[str, Any]) -> VerifyResult:
        runs.append(options.script)
        return DEVIATING

    monkeypatch.setattr(cli.verify, "_measured", run)
    return runs


def test_the_page_is_written_beside_the_report(
    project: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--report", "out.html", "train.py"]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("train.py: deviates: ")
    assert said.err == ""
    html = (project / "out.html").read_text(encoding="utf-8")
    assert in_order(Page(html).words, "deviates train.py", "loss.backward()")
    assert sorted(path.name for path in project.iterdir()) == ["out.html", "train.py"]


def test_a_failed_run_has_a_page_too(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "out.html").write_text("of an earlier run")
    assert main(["verify", "--report", "out.html", "gone.py"]) == 2
    assert capsys.readouterr().err == "gradcheck-accum: gone.py: no such file\n"
    assert in_order(Page((project / "out.html").read_text(encoding="utf-8")).words, "error gone.py no such file")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("gone/out.html", "gone/out.html: No such file or directory"),
        (".", ".: is a directory"),
        ("pipe", "pipe: is not a regular file"),
        ("train.py", "train.py: is the script itself"),
        ("linked.html", "linked.html: is the script itself"),
        ("out.txt", "out.txt: is --output-file too"),
    ],
)
@pytest.mark.parametrize("command", ["verify", "compare"])
def test_a_path_that_cannot_be_written_ends_it_before_the_run(
    command: str, path: str, problem: str, project: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(project / "pipe")
    (project / "linked.html").symlink_to("train.py")
    each = ["--with=--accum 1", "--with=--accum 3"] if command == "compare" else []
    assert main([command, "--report", path, "--output-file", "out.txt", *each, "train.py"]) == 2
    assert capsys.readouterr().err == f"gradcheck-accum: --report {problem}\n"
    assert measured == []
    assert (project / "train.py").read_text() == SOURCE
    assert sorted(p.name for p in project.iterdir()) == ["linked.html", "pipe", "train.py"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_what_may_not_be_written_is_not_replaced(
    project: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "out.html").write_text("kept")
    (project / "out.html").chmod(0o444)
    assert main(["verify", "--report", "out.html", "train.py"]) == 2
    assert capsys.readouterr().err == "gradcheck-accum: --report out.html: Permission denied\n"


@pytest.mark.parametrize("command", ["verify", "compare"])
@pytest.mark.parametrize(
    ("missing", "said"),
    [({"matplotlib"}, "matplotlib, which is"), ({"jinja2", "matplotlib"}, "jinja2 and matplotlib, which are")],
)
def test_without_the_extra_it_is_one_line(
    command: str,
    missing: set[str],
    said: str,
    project: Path,
    measured: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in missing else find(name, *rest))
    each = ["--with=--accum 1", "--with=--accum 3"] if command == "compare" else []
    assert main([command, "--report", "out.html", *each, "train.py"]) == 2
    line = f"gradcheck-accum: --report needs {said} not installed here: pip install 'gradcheck-accum[report]'\n"
    assert capsys.readouterr().err == line
    assert measured == []


def test_without_it_nothing_that_draws_is_loaded(project: Path) -> None:
    code = (
        "import sys; from gradcheck_accum.cli import main; main(['verify', 'gone.py']); "
        "print(sorted({'jinja2', 'matplotlib', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n"


SCRIPT = """\
import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=5)
parser.add_argument("--accum", type=int, default=3)
args = parser.parse_args()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, x in enumerate(torch.randn(30, 3).split(args.rows)):
    (0.7 * model(x).pow(2).mean()).backward()
    if (i + 1) % args.accum == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_a_page_of_a_real_run(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "train.py").write_text(SCRIPT)
    assert main(["verify", "--trajectory", "--report", "out.html", "train.py"]) == 1
    html = (project / "out.html").read_text(encoding="utf-8")
    assert in_order(
        Page(html).words,
        "deviates train.py 2 of 2 steps do not match the large-batch gradient",
        "divide the loss by 3",
        "GA101 missing-loss-scaling",
        "3 x 3.000",
        "Error of window",
        "(2.000 of the norm in total)",
        "0.weight",
        "Drift of the weights",
        "As 3 micro-batches",
        "(0.7 * model(x).pow(2).mean()).backward()",
    )
    assert html.count('class="chart"') == 4


@pytest.mark.slow
def test_a_page_of_a_real_comparison(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "train.py").write_text(SCRIPT)
    sides = ["--vary", "rows=5,15", "--vary", "accum=3,1"]
    assert main(["compare", "--report", "out.html", "train.py", *sides]) == 1
    words = Page((project / "out.html").read_text(encoding="utf-8")).words
    assert in_order(
        words,
        "deviates train.py 2 of 2 steps do not match the reference gradient",
        "divide the loss by 3",
        "reference --rows 15 --accum 1",
        "SGD: 2 steps",
        "Error of window",
        "The same run as seen by verify",
        "3 x 3.000",
    )


@pytest.mark.slow
def test_rank_0_writes_the_page_of_all(project: Path) -> None:
    ranked = SCRIPT.replace("model = ", "torch.distributed.init_process_group('gloo')\nmodel = ").replace(
        "optimizer = ", "model = torch.nn.parallel.DistributedDataParallel(model)\noptimizer = ", 1
    )
    (project / "train.py").write_text(ranked)
    launch(project, "-m", "gradcheck_accum", "verify", "--report", "out.html", "train.py")
    words = Page((project / "out.html").read_text(encoding="utf-8")).words
    assert in_order(words, "deviates train.py", "ranks 2", "SGD: 2 windows", "The error by parameter was not measured")
    assert sorted(path.name for path in project.iterdir()) == ["out.html", "train.py"]
