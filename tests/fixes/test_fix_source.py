"""The contract of every fix: its finding is gone, no other came, nothing else changed, and verify agrees."""

from __future__ import annotations

import ast
import difflib
import re
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from loop_pages import written_loops
from loops_with_places import codes_in
from pages import Page, pages, unmarked
from plain_loops import plain_loop
from watching import found, watch_source

from gradcheck_accum.lint.examination.examine import Examination, Progress, examine_in_steps
from gradcheck_accum.lint.fixes import FixResult, fix_source, offer_fixes
from gradcheck_accum.results.verdict import Verdict

ROOT = Path(__file__).parents[2]
FIXTURES = [p for p in sorted((ROOT / "fixtures").glob("*.py")) if "code = " in p.with_suffix(".toml").read_text()]
DEMO = [ROOT / "fixtures" / "demo" / name for name in ("one_epoch.py", "train_faulty.py")]
SCRIPTS = {path.stem: path.read_text(encoding="utf-8") for path in (*FIXTURES, *DEMO)}
FAULTY = SCRIPTS | {name: loop for name, loop in written_loops().items() if name.startswith("bad_")}


def each(sources: dict[str, str]) -> pytest.MarkDecorator:
    """A test for each script, those of one in turn, for they ask the same of it; the demo's trains for seconds."""
    long = [pytest.mark.thorough]
    params = [pytest.param(text, id=name, marks=long * (name == "train_faulty")) for name, text in sources.items()]
    return pytest.mark.parametrize("source", params, scope="module")


every_faulty_script = each(FAULTY)
every_page = pytest.mark.parametrize(
    "page", [page for page in pages() if page.settings["static"]], ids=lambda page: page.path.stem
)


def codes(source: str) -> list[str]:
    return list(_codes(source))


@cache
def _codes(source: str) -> tuple[str, ...]:
    return tuple(sorted(codes_in(source)))


@cache
def fix_everything(source: str) -> FixResult:
    return fix_source(source, "train.py", unsafe=True)


def check_contract(source: str) -> FixResult:
    """What holds for whatever is fixed."""
    before = codes(source)
    result = fix_everything(source)
    ast.parse(result.source)
    remaining = sorted(f.mistake.code for f in result.remaining)
    assert codes(result.source) == remaining
    assert all(remaining.count(code) <= before.count(code) for code in remaining)
    assert bool(result.fixed) == (result.source != source)
    assert len(remaining) < len(before) if result.fixed else remaining == before
    assert all(finding.fix for finding in result.fixed)
    again = fix_everything(result.source)
    assert (again.source, again.fixed) == (result.source, ())
    return result


@every_faulty_script
def test_fixing_a_script_keeps_the_contract(source: str) -> None:
    check_contract(source)


# The loops, and the function of one epoch, are called with arguments: they do not train by themselves.
@each({name: source for name, source in SCRIPTS.items() if name != "one_epoch"})
def test_verify_calls_a_fixed_script_equivalent(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    result = fix_everything(source)
    measured = watch_source(result.source, tmp_path)
    seen = {name for _, name in found(measured)}
    # An error that these runs do not meet (the memory of a CPU suffices) makes no short window in them.
    remaining = {f.mistake.name for f in result.remaining} - ({"window-interrupted"} - seen)
    assert seen == remaining
    if not remaining:
        assert measured.verdict is Verdict.EQUIVALENT, measured.reason


@every_page
def test_the_page_shows_what_the_fix_makes(page: Page, tmp_path: Path) -> None:
    (bad,) = page.examples["bad"]
    result = check_contract(bad)
    if page.settings["fix"] == "none":
        assert result.fixed == ()
        assert "fixed" not in page.examples
        return
    (finding,) = offer_fixes(bad, "train.py")
    assert finding.fix is not None
    assert finding.fix.safe == (page.settings["fix"] == "safe")
    assert page.examples["fixed"] == [unmarked(result.source)]
    measured = watch_source(result.source, tmp_path)
    assert measured.verdict is Verdict.EQUIVALENT, measured.reason
    assert measured.diagnosis == ()


@every_faulty_script
def test_an_offered_fix_is_its_edits(source: str) -> None:
    for finding in offer_fixes(source, "train.py"):
        if finding.fix is None:
            continue
        lines = source.splitlines(keepends=True)
        for edit in sorted(finding.fix.edits, reverse=True):
            assert edit.column == edit.end_column == 1
            lines[edit.line - 1 : edit.end_line - 1] = [edit.content]
        edited = codes("".join(lines))
        # A repair that would uncover another mistake brings that one's along.
        expected = codes(source)
        expected.remove(finding.mistake.code)
        assert set(edited) <= set(expected)
        assert finding.mistake.code not in edited or finding.mistake.code in expected


def test_unsafe_fixes_are_made_only_where_asked_for() -> None:
    source = SCRIPTS["basic_no_flush"]
    result = fix_source(source, "train.py", unsafe=False)
    assert (result.source, result.fixed) == (source, ())
    (finding,) = result.remaining
    assert finding.fix is not None
    assert not finding.fix.safe


def test_only_the_codes_that_were_asked_for_are_fixed() -> None:
    source = SCRIPTS["zeroed_every_batch"].replace(" / accumulation_steps", "")
    assert codes(source) == ["GA101", "GA201"]
    result = fix_source(source, "train.py", unsafe=True, codes={"GA101"})
    assert [f.mistake.code for f in result.fixed] == ["GA101"]
    assert result.remaining == ()
    assert codes(result.source) == ["GA201"]


LOOP = plain_loop("K", flush=True)


def test_a_suppressed_finding_is_not_fixed() -> None:
    source = LOOP.replace("loss.backward()", "loss.backward()  # noqa: GA101")
    assert fix_everything(source).source == source


def test_a_flushed_remainder_gets_its_own_divisor() -> None:
    """Dividing by K alone would repair GA101 and make GA103."""
    result = check_contract(LOOP)
    assert "window = min(K, len(loader) - i // K * K)" in result.source
    assert "(loss / window).backward()" in result.source
    assert [f.fix and f.fix.safe for f in result.fixed] == [True]


def test_without_a_length_that_is_known_to_exist_the_windows_own_number_is_unsafe() -> None:
    flush = "    if (i + 1) % K != 0:\n        optimizer.step()\n        optimizer.zero_grad()\n"
    source = LOOP.replace(" or i + 1 == len(loader)", "") + flush
    (finding,) = offer_fixes(source, "train.py")
    assert finding.mistake.code == "GA101"
    assert finding.fix is not None
    assert not finding.fix.safe
    check_contract(source)


@pytest.mark.parametrize("name", ["TEMPERATURE", "K"])
def test_a_constant_of_the_objective_that_equals_k_is_not_rescaled(name: str) -> None:
    """What is divided by the window's own number is what divides for the window, and no other number of that value."""
    divided = LOOP.replace("criterion, K", "criterion").replace("y)\n", f"y) / {name}\n")
    source = f"{name} = 8\n{divided}".replace("K == 0", "8 == 0" if name != "K" else "K == 0")
    if name != "K":
        clip = "            for p in model.parameters():\n                p.grad.div_(8)\n"
        source = source.replace("            optimizer.step()", f"{clip}            optimizer.step()")
    assert "GA103" in codes(source)
    assert ("/ window" in fix_everything(source).source) == (name == "K")


def test_a_loss_that_is_logged_too_makes_its_rescaling_unsafe() -> None:
    source = LOOP.replace("y)\n", "y) / K\n")
    (finding,) = offer_fixes(source, "train.py")
    assert (finding.mistake.code, finding.fix and finding.fix.safe) == ("GA103", True)
    (finding,) = offer_fixes(source + "        print(loss.item() * K)\n", "train.py")
    assert (finding.mistake.code, finding.fix and finding.fix.safe) == ("GA103", False)


@pytest.mark.parametrize(
    ("backward", "fixed"),
    [
        ("loss.backward()", "(loss / window).backward()"),
        ("(loss + 0).backward()", "((loss + 0) / window).backward()"),
        ("criterion(model(x), y).backward()", "(criterion(model(x), y) / window).backward()"),
        ("scaler.scale(loss).backward()", "scaler.scale(loss / window).backward()"),
        ("scaler.scale(loss + 0).backward()", "scaler.scale((loss + 0) / window).backward()"),
        ("torch.autograd.backward(loss)", "torch.autograd.backward(loss / window)"),
    ],
)
def test_the_loss_is_divided_wherever_it_stands(backward: str, fixed: str) -> None:
    step = "scaler.step(optimizer)\n            scaler.update()" if "scaler" in backward else "optimizer.step()"
    source = "import torch\n" + LOOP.replace("loss.backward()", backward).replace("optimizer.step()", step)
    assert codes(source) == ["GA101"]
    result = check_contract(source)
    assert fixed in result.source
    assert result.remaining == ()


@pytest.mark.parametrize(
    ("division", "left"),
    [
        (
            "loss = torch.nn.functional.cross_entropy(model(x), y) / K / x.size(0)",
            "loss = torch.nn.functional.cross_entropy(model(x), y) / K",
        ),
        ("loss = criterion(model(x), y) / K\n        loss /= K", "loss = criterion(model(x), y) / K"),
        ("loss = criterion(model(x), y) / K\n        loss = loss / K", "loss = criterion(model(x), y) / K"),
        ("loss = (criterion(model(x), y) / K).div(K)", "loss = (criterion(model(x), y) / K)"),
        ("loss = torch.div(criterion(model(x), y) / K, K)", "loss = criterion(model(x), y) / K"),
    ],
)
def test_the_second_division_is_taken_out_wherever_it_stands(division: str, left: str) -> None:
    source = "import torch\n" + LOOP.replace("loss = criterion(model(x), y)", division)
    source = source.replace(" or i + 1 == len(loader)", "").replace("enumerate(loader)", "enumerate(loader[:8])")
    source = source.replace("criterion, K", "criterion, loader_, K=4").replace("loader[:8]", "[next(loader)] * 8")
    assert "GA102" in codes(source)
    result = check_contract(source)
    assert f"        {left}\n        loss.backward()" in result.source


@pytest.mark.parametrize(
    ("test", "fixed"),
    [
        ("if (i + 1) % K == 0:", "if (i + 1) % K == 0 or i + 1 == len(loader):"),
        ("if not (i + 1) % K:", "if not (i + 1) % K or i + 1 == len(loader):"),
        ("if ((i + 1) % K) == 0 and i >= 0:", "if (((i + 1) % K) == 0 or i + 1 == len(loader)) and i >= 0:"),
        (
            "full = (i + 1) % K == 0\n        if full:",
            "full = (i + 1) % K == 0 or i + 1 == len(loader)\n        if full:",
        ),
    ],
)
def test_the_boundary_is_extended_wherever_it_is_tested(test: str, fixed: str) -> None:
    source = LOOP.replace("if (i + 1) % K == 0 or i + 1 == len(loader):", test).replace("y)\n", "y) / K\n")
    assert codes(source) == ["GA301"]
    result = check_contract(source)
    assert f"        {fixed}\n" in result.source
    assert result.remaining == ()


def test_a_fix_that_would_make_another_mistake_is_not_made() -> None:
    """Clearing after the step uncovers a remainder that nothing here can rescale: the loop has no length."""
    source = written_loops()["bad_zero_after_backward_in_class"]
    assert fix_everything(source).source == source


def test_a_fix_that_is_right_under_one_flag_only_is_not_made() -> None:
    source = LOOP.replace(
        "        loss.backward()\n",
        "        if args.average:\n            loss = loss / K\n        loss.backward()\n",
    ).replace("criterion, K", "criterion, args, K")
    assert "GA101" not in codes(source)
    assert "(loss / " not in fix_everything(source).source


def test_a_clip_moves_with_its_condition_and_is_unscaled_there() -> None:
    source = """\
import torch


def train(args, model, loader, optimizer, criterion, scaler, K):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / min(K, len(loader) - i // K * K)
        scaler.scale(loss).backward()
        # limit
        if args.max_norm:
            torch.nn.utils.clip_grad_norm_(
                model.parameters(),
                args.max_norm,  # why
            )
        if (i + 1) % K == 0 or i + 1 == len(loader):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
    assert codes(source) == ["GA401", "GA501"]
    result = check_contract(source)
    assert result.remaining == ()
    assert (
        """\
        # limit
        if (i + 1) % K == 0 or i + 1 == len(loader):
            if args.max_norm:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(
                    model.parameters(),
                    args.max_norm,  # why
                )
            scaler.step(optimizer)
"""
        in result.source
    )


def test_a_clip_that_is_unscaled_at_every_micro_batch_moves_with_its_unscaling() -> None:
    clip = (
        "        scaler.unscale_(optimizer)\n        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # limit\n"
    )
    source = "import torch\n" + LOOP.replace("y)\n", "y) / min(K, len(loader) - i // K * K)\n")
    source = source.replace("        loss.backward()\n", f"        scaler.scale(loss).backward()\n{clip}")
    source = source.replace("optimizer.step()", "scaler.step(optimizer)\n            scaler.update()")
    assert codes(source) == ["GA401", "GA502"]
    result = check_contract(source)
    assert result.remaining == ()
    moved = "".join(f"    {line}\n" for line in clip.splitlines())
    assert f"{moved}            scaler.step(optimizer)\n" in result.source


def test_a_clip_in_a_branch_of_its_own_stays_where_it_is() -> None:
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    source = "import torch\n" + LOOP.replace("y)\n", "y) / min(K, len(loader) - i // K * K)\n")
    source = source.replace("criterion, K", "criterion, args, K").replace(
        "        loss.backward()\n",
        "        loss.backward()\n        if args.early:\n            pass\n"
        f"        elif args.clip:\n            {clip}\n",
    )
    assert codes(source) == ["GA401"]
    assert fix_everything(source).source == source


@pytest.mark.parametrize(
    "condition",
    [
        "if args.fp16:\n            {}\n        else:\n            {}",
        "try:\n            {}\n        finally:\n            {}",
    ],
    ids=["if", "try"],
)
def test_a_clip_does_not_leave_the_condition_that_it_stands_under(condition: str) -> None:
    """Without that flag there may be no ``amp`` to ask for its parameters: two clips before one step would raise."""
    clips = (
        "loss.backward()\n            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.7)",
        "loss.backward()\n            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.7)",
    )
    source = "import torch\n" + LOOP.replace("y)\n", "y) / min(K, len(loader) - i // K * K)\n")
    source = source.replace("criterion, K", "criterion, args, K").replace("loss.backward()", condition.format(*clips))
    assert "GA401" in codes(source)
    assert fix_everything(source).source == source


def test_a_clip_whose_norm_is_kept_stays_where_it_is() -> None:
    clip = "        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        print(norm)\n"
    source = "import torch\n" + LOOP.replace("y)\n", "y) / min(K, len(loader) - i // K * K)\n")
    source = source.replace("backward()\n", f"backward()\n{clip}")
    assert codes(source) == ["GA401"]
    assert fix_everything(source).source == source


@pytest.mark.parametrize(
    "reader",
    [
        "torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)",
        "print(model.weight.grad.norm())",
        "for p in model.parameters():\n            print(p.grad.norm())",
    ],
)
def test_gradients_are_cleared_behind_what_reads_them_after_the_step(reader: str) -> None:
    source = f"""\
import torch
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    (criterion(model(x), y) / 4).backward()
    if (i + 1) % 4 == 0 or i + 1 == len(loader):
        optimizer.step()
        {reader}
        print(i)
"""
    fixed = fix_source(source, "train.py", unsafe=False).source
    assert f"{reader}\n        optimizer.zero_grad()\n        print(i)\n" in fixed


def test_a_loop_around_a_while_loop_does_not_number_its_micro_batches() -> None:
    source = """\
import torch
batches = [(torch.randn(2, 4), torch.randint(0, 3, (2,))) for _ in range(10)]
for epoch in range(2):
    i = 0
    while i < len(batches):
        x, y = batches[i]
        criterion(model(x), y).backward()
        if (i + 1) % 4 == 0:
            for p in model.parameters():
                p.grad.div_(i % 4 + 1)
            optimizer.step()
            optimizer.zero_grad()
        i += 1
"""
    result = fix_everything(source)
    assert "GA301" in {f.mistake.code for f in result.remaining}
    assert result.source == source


def test_a_number_that_merely_equals_k_is_not_taken_for_it() -> None:
    log = "        if (i + 1) % log_every == 0:\n            print(loss.item())\n"
    source = LOOP.replace("K)", "log_every=4, K=4)").replace("backward()\n", f"backward()\n{log}")
    result = check_contract(source)
    assert "min(K, len(loader) - i // K * K)" in result.source


def test_both_branches_of_a_flag_are_repaired() -> None:
    source = LOOP.replace("criterion, K", "criterion, scaler, args, K").replace(
        "        loss.backward()\n",
        "        if args.fp16:\n            scaler.scale(loss).backward()\n"
        "        else:\n            loss.backward()\n",
    )
    source = source.replace(
        "            optimizer.step()\n",
        "            if args.fp16:\n                scaler.step(optimizer)\n                scaler.update()\n"
        "            else:\n                optimizer.step()\n",
    )
    assert codes(source) == ["GA101", "GA101"]
    result = check_contract(source)
    assert result.remaining == ()
    assert result.source.count("window = ") == 1
    assert "scaler.scale(loss / window).backward()" in result.source
    assert "(loss / window).backward()" in result.source


def in_two_precisions(flush: str) -> str:
    """A loop with a backward and a step for either precision, whose loss nothing divides."""
    return f"""\
def train(model, loader, optimizer, criterion, scaler, args, K):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        if args.fp16:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if (i + 1) % K == 0{flush}:
            if args.fp16:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
"""


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[bool]]]:
    """The texts that repairs are judged by, each with its scenarios: False, and True once all have been run."""
    texts: list[tuple[str, list[bool]]] = []

    def watched(text: str, path: str, *, thorough: bool) -> Generator[Progress, None, Examination]:
        assert thorough
        steps: list[bool] = []
        texts.append((text, steps))
        progress = examine_in_steps(text, path, thorough=True)
        try:
            while True:
                one = next(progress)
                steps.append(False)
                yield one
        except StopIteration as end:
            steps.append(True)
            return end.value  # type: ignore[no-any-return]

    monkeypatch.setattr("gradcheck_accum.lint.fixes.judging.examine_in_steps", watched)
    return texts


def test_a_repair_is_judged_in_every_scenario_or_until_one_denies_it(judged: list[tuple[str, list[bool]]]) -> None:
    """Divided by K, the remainder is wrong, which the scenario of that backward shows; by the window's, nothing is."""
    source = in_two_precisions(" or i + 1 == len(loader)")
    in_full, in_half = offer_fixes(source, "train.py")
    assert in_full.fix and in_half.fix
    by_window = [steps for text, steps in judged if "window = " in text]
    by_steps = [steps for text, steps in judged if "/ K)" in text]
    assert by_window == [[False, False, True]] * 2
    assert sorted(by_steps) == [[False], [False, False]]


def test_what_leaves_its_own_mistake_in_a_scenario_is_not_completed(judged: list[tuple[str, list[bool]]]) -> None:
    """The step for the remainder leaves its scale wrong, and a division by the window's length does where K is one."""
    source = LOOP.replace(" or i + 1 == len(loader)", "").replace("criterion, K", "criterion, args, K")
    source = source.replace("loss = criterion(model(x), y)", "loss = criterion(model(x), y) / K")
    source = source.replace(
        "        loss.backward()\n",
        "        if args.twice:\n            loss = loss / K\n"
        "        (loss * args.weight if args.weighted else loss).backward()\n",
    )
    assert [(f.mistake.code, f.fix) for f in offer_fixes(source, "train.py")] == [("GA301", None)]
    (stepped, of_step), *divided = judged
    assert "or i + 1 == len(loader)" in stepped and of_step[-1]
    assert divided and all("window = " in text and True not in steps for text, steps in divided)


def test_a_change_that_repairs_several_findings_is_judged_once(judged: list[tuple[str, list[bool]]]) -> None:
    source = in_two_precisions("")
    offers = offer_fixes(source, "train.py")
    assert sorted(finding.mistake.code for finding in offers) == ["GA101", "GA101", "GA301", "GA301"]
    assert all(finding.fix for finding in offers)
    texts = [text for text, _ in judged]
    assert len(texts) == len(set(texts)) < len(offers)


def test_a_remainder_of_unknown_scale_is_not_stepped_for() -> None:
    """The step would be right only if the loss is, and what another file does to it is not known."""
    source = "from somewhere import scaled\n" + LOOP.replace(" or i + 1 == len(loader)", "")
    source = source.replace("loss = criterion(model(x), y)", "loss = scaled(criterion(model(x), y), K)")
    assert codes(source) == ["GA301"]
    assert fix_everything(source).source == source


@pytest.mark.parametrize(("newline", "indentation"), [("\n", "  "), ("\r\n", "\t")], ids=["two", "crlf-tabs"])
@each(dict([*FAULTY.items()][::3]))
def test_everything_else_is_unchanged(source: str, newline: str, indentation: str) -> None:
    """Line ends, indentation, blank lines and comments of what no fix touches stay byte for byte."""
    lines = [re.sub(r"\A(?: {4})+", lambda own: indentation * (len(own[0]) // 4), line) for line in source.split("\n")]
    source = newline.join(["# héllo \u2028 wörld \f", "", *lines]) + f"{newline}# the end"
    result = check_contract(source)
    assert result.source.replace(newline, "").count("\n") == 0
    assert newline == "\n" or result.source.count("\r\n") == result.source.count("\n")
    old, new = source.split(newline), result.source.split(newline)
    kept = sum(block.size for block in difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks())
    assert len(old) - kept <= 3 * max(1, len(result.fixed))
    fixed = {finding.where.line for finding in result.fixed}
    comments = [line[line.index("#") :] for number, line in enumerate(old, 1) if "#" in line and number not in fixed]
    assert all(comment in result.source for comment in comments)


def test_a_statement_on_one_line_with_its_condition_is_kept_there() -> None:
    source = LOOP.replace(":\n            optimizer.step()\n            optimizer.zero_grad()", ": optimizer.step()")
    source = source.replace("y)\n", "y) / K\n").replace(" or i + 1 == len(loader)", "")
    source = source.replace("enumerate(loader)", "enumerate([next(loader)] * 8)").replace("K)", "K=4)")
    assert codes(source) == ["GA203"]
    assert "if (i + 1) % K == 0: optimizer.step(); optimizer.zero_grad()" in check_contract(source).source


def test_a_last_line_without_an_end_gets_none() -> None:
    source = written_loops()["bad_never_zeroed"].rstrip()
    result = check_contract(source)
    assert result.source == f"{source}\n            optimizer.zero_grad()"


def test_places_are_found_behind_letters_of_several_bytes() -> None:
    result = check_contract(LOOP.replace("loss.backward()", 'größe = "é€😀"; loss.backward()'))
    assert 'größe = "é€😀"; (loss / window).backward()' in result.source


ODD = {
    "parentheses of its own": ("loss.backward()", "((loss)).backward()", "(((loss)) / window).backward()"),
    "a sum": ("loss.backward()", "(loss + 1).backward()", "((loss + 1) / window).backward()"),
    "spread over lines": (
        "loss.backward()",
        "(  # why\n            loss\n            + 1\n        ).backward()",
        "((  # why\n            loss\n            + 1\n        ) / window).backward()",
    ),
    "an argument": (
        "loss.backward()",
        "torch.autograd.backward((loss), None)",
        "torch.autograd.backward((loss) / window, None)",
    ),
    "semicolons": ("loss.backward()", "loss.backward();", "(loss / window).backward();"),
}


@pytest.mark.parametrize(("before", "odd", "after"), ODD.values(), ids=list(ODD))
def test_the_text_around_a_change_is_kept(before: str, odd: str, after: str) -> None:
    result = check_contract("import torch\n" + LOOP.replace(before, odd))
    assert after in result.source


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_tabs_form_feeds_and_the_ends_of_lines_are_kept(newline: str) -> None:
    source = ("\f\n# \x0b ä\n" + LOOP.replace("    ", "\t") + "\f\n").replace("\n", newline)
    result = check_contract(source)
    assert f"\t\twindow = min(K, len(loader) - i // K * K){newline}" in result.source
    assert f"\t\t(loss / window).backward(){newline}" in result.source
    kept = [line for line in source.split(newline) if "backward" not in line and "for i" not in line]
    assert set(kept) <= set(result.source.split(newline))


WINDOW = """\
import torch

def train(model, loader, optimizer, criterion, clip=True, ps=(), K=4):
    for i, (x, y) in enumerate([next(loader)] * 8):
        loss = criterion(model(x), y) / K
        {}
        if (i + 1) % K == 0:
            optimizer.step()
"""


def test_one_of_several_statements_on_a_line_is_moved_alone() -> None:
    result = check_contract(WINDOW.format("loss.backward(); optimizer.zero_grad()  # now"))
    assert "        loss.backward()  # now\n" in result.source
    assert result.source.endswith("            optimizer.step()\n            optimizer.zero_grad()\n")


def test_a_comment_behind_a_conditional_clip_moves_along() -> None:
    clip = "loss.backward()\n        if clip:\n            torch.nn.utils.clip_grad_norm_(ps, 1)  # x"
    result = check_contract(WINDOW.format(clip) + "            optimizer.zero_grad()\n")
    assert "            if clip:\n                torch.nn.utils.clip_grad_norm_(ps, 1)  # x\n" in result.source


def test_a_divisor_is_read_only_where_it_has_a_value() -> None:
    """What divides by the window's own number must not be divided by what is only bound further down in the loop."""
    source = WINDOW.format("loss.backward()\n        optimizer.zero_grad()").replace(" / K\n", "\n")
    source = source.replace("(i + 1) % K == 0", "i % K == 0 or i + 1 == 8")
    result = check_contract(source)
    assert sorted(finding.mistake.code for finding in result.fixed) == ["GA202", "GA302"]
    assert "window" not in result.source
    assert "(loss / K).backward()" in result.source
