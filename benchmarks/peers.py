"""`lint` and torch-preflight on small loops, right and wrong ones, and what becomes of a loop that either has fixed.

    python benchmarks/peers.py [--rival PATH/TO/torch-preflight]

Every loop of `peers.md` is a script, and says in `# error: [name]` comments what is wrong with it. A wrong loop that
was fixed is run under `verify`. A right loop that was changed is compared with the original: the gradients of every
step, in float64.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from programs import marked_errors, peers
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradcheck_accum.lint import lint_source
from gradcheck_accum.lint.fixes import fix_source
from gradcheck_accum.results.verdict import Verdict
from gradcheck_accum.verify import observe

KINDS = ("bad", "hard_bad", "right", "hard_right")
_SAME = 1e-12
"""The relative difference of gradients in float64 below which a fix has changed nothing."""


def step_gradients(path: Path) -> list[torch.Tensor]:
    """What every optimizer step of a script gets, in float64: one flat vector a step."""
    steps: list[torch.Tensor] = []

    def note(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        steps.append(torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in parameters]))

    handle = register_optimizer_step_pre_hook(note)
    torch.set_default_dtype(torch.float64)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        torch.set_default_dtype(torch.float32)
        handle.remove()
    return steps


def judge(original: Path, fixed: str) -> str:
    """What a fix has done to a loop."""
    if fixed == original.read_text(encoding="utf-8"):
        return ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / original.name
        path.write_text(fixed, encoding="utf-8")
        try:
            if "right" in original.stem:
                before, after = step_gradients(original), step_gradients(path)
                same = len(before) == len(after) and all(
                    torch.allclose(a, b, rtol=_SAME, atol=_SAME) for a, b in zip(before, after, strict=True)
                )
                return "changes nothing" if same else "makes it wrong"
            with contextlib.redirect_stdout(io.StringIO()), observe(script=str(path)) as observation:
                runpy.run_path(str(path), run_name="__main__")
            result = observation.result()
        except ImportError as error:
            return f"not run: {error.name} is missing"
        return "right" if result.verdict is Verdict.EQUIVALENT and not result.diagnosis else "still wrong"


def ours(path: Path) -> tuple[str, str]:
    """The findings of `lint`, and what its fixes, the unsafe ones too, have done."""
    source = path.read_text(encoding="utf-8")
    found = sorted({f.mistake.code for f in lint_source(source, path.name)})
    return " ".join(found), judge(path, fix_source(source, path.name, unsafe=True).source)


def rivals(path: Path, rival: str) -> tuple[str, str]:
    """The same of torch-preflight."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(path.read_bytes())
        check = [rival, "check", "-f", "json", "-j", "1", str(copy)]
        report = subprocess.run(check, capture_output=True, text=True, check=False)
        findings = json.loads(report.stdout)["diagnostics"]
        subprocess.run([rival, "check", "--fix", "-q", "-j", "1", str(copy)], capture_output=True, check=False)
        return " ".join(sorted({finding["code"] for finding in findings})), judge(
            path, copy.read_text(encoding="utf-8")
        )


def table(rival: str | None) -> list[tuple[str, str, tuple[str, str], tuple[str, str]]]:
    """For every loop: its name, the mistakes that it has, and the findings and fixes of both tools."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, source in sorted(peers().items(), key=lambda loop: (kind_of(loop[0]), loop[0])):
            path = Path(folder, f"{name}.py")
            path.write_text(source, encoding="utf-8")
            wanted = " ".join(sorted({name for _, name in marked_errors(source)}))
            rows.append((name, wanted, ours(path), rivals(path, rival) if rival else ("", "")))
    return rows


def kind_of(name: str) -> int:
    """Which of the kinds a loop is of, by its name."""
    return next(number for number, kind in enumerate(KINDS) if name.startswith(f"{kind}_"))


def main() -> int:
    """Print the table and its sums; 1 if ours misses a wrong loop, flags a right one, or makes one wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rival", help="the torch-preflight to run beside it")
    rival = parser.parse_args().rival
    torch.set_num_threads(1)
    rows = table(rival)
    for name, wanted, mine, other in rows:
        beside = f"| {other[0]:11} {other[1]:15}" if rival else ""
        print(f"{name:34} {wanted:22} | {mine[0]:6} {mine[1]:36} {beside}".rstrip())
    failed = False
    for title, column in [("lint", 2), ("torch-preflight", 3)][: 2 if rival else 1]:
        flagged = {kind: [bool(r[column][0]) for r in rows if r[0].startswith(f"{kind}_")] for kind in KINDS}
        spoilt = sum(r[column][1] == "makes it wrong" for r in rows)
        counts = ", ".join(f"{kind} {sum(flags)}/{len(flags)}" for kind, flags in flagged.items())
        print(f"{title}: flagged {counts}; right loops that its fixes make wrong: {spoilt}")
        if column == 2:
            failed = any(flagged["right"] + flagged["hard_right"]) or bool(spoilt)
            failed = failed or not all(flagged["bad"] + flagged["hard_bad"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
