"""What the released versions of the training frameworks do, measured by verify: writes docs/frameworks.md.

    python benchmarks/frameworks_table.py [--timm PYTHON] [OUTPUT]

Runs every script in fixtures/frameworks under ``gradcheck-accum verify``, once for each kind of data: timm's by PYTHON,
which has it. The suite (tests/frameworks) holds the same numbers against float64 arithmetic of its own.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from gradcheck_accum.results.verdict import Verdict, VerifyResult, WindowReport
from gradcheck_accum.verify import verify_script

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "fixtures" / "frameworks"

FRAMEWORKS = [
    ("accelerate_loop", "Accelerate, `accumulate`", "accelerate"),
    ("transformers_trainer", "Transformers `Trainer`, Llama", "transformers"),
    ("transformers_own_model", "Transformers `Trainer`, own model: `forward(..., **kwargs)`", "transformers"),
    ("lightning_automatic", "Lightning, automatic", "lightning"),
    ("lightning_manual", "Lightning, manual", "lightning"),
    ("fabric_loop", "Fabric", "lightning"),
    ("ignite_engine", "Ignite, supervised trainer", "pytorch-ignite"),
    ("timm_loop", "timm, the loop of its train.py", "timm"),
    ("sentence_similarity", "Sentence Transformers, cosine similarity", "sentence-transformers"),
    ("trl_sft", "TRL `SFTTrainer`", "trl"),
    ("deepspeed_engine", "DeepSpeed, ZeRO stage 0", "deepspeed"),
]
"""Script, what a reader calls it, and the distribution whose version counts."""

CONDITIONS = {
    "equal counts": ["equal"],
    "unequal counts": ["unequal"],
    "remainder window": ["remainder"],
    "clip": ["equal", "clip"],
}


def measured(name: str, arguments: list[str], python: str = "") -> str:
    """What a script comes to on one kind of data, run by ``python`` where that is another."""
    print(name, *arguments, file=sys.stderr)
    if python:
        return asked(python, f"from frameworks_table import measured; print(measured({name!r}, {arguments!r}))")
    return cell(verify_script(str(SCRIPTS / f"{name}.py"), arguments, timeout=600))


def asked(python: str, code: str) -> str:
    """What other ``python`` prints when it runs ``code``."""
    path = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT)])
    ended = subprocess.run(
        [python, "-c", code], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True
    )
    return ended.stdout.strip()


def cell(result: VerifyResult) -> str:
    """One measurement: right, or the codes with what the gradient was."""
    if result.verdict is Verdict.EQUIVALENT:
        return "right"
    wrong = [w for w in result.windows if w.verdict is Verdict.DEVIATES]
    if not wrong:
        return f"{result.verdict.value}: {result.error or result.reason}"
    codes = ", ".join(dict.fromkeys(d.mistake.code for d in result.diagnosis))
    how_many = "" if len(wrong) == len(result.windows) else f" in {len(wrong)} of {len(result.windows)} windows"
    return f"**{codes}**: {norms(wrong)}, error {errors(wrong)}{how_many}"


def norms(windows: Sequence[WindowReport]) -> str:
    """The ratios of the gradient's norm to the large batch's."""
    return "norm " + _range([w.grad_norm_ratio or 0.0 for w in windows])


def errors(windows: Sequence[WindowReport]) -> str:
    """The relative errors of the gradient."""
    return _range([w.grad_rel_error or 0.0 for w in windows])


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.3f}", f"{max(values):.3f}"
    return low if low == high else f"{low} to {high}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path, nargs="?", default=ROOT / "docs" / "frameworks.md")
    parser.add_argument("--timm", default="", metavar="PYTHON")
    given = parser.parse_args()
    pythons = {"timm": given.timm}
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    lines = [
        "| framework | version | " + " | ".join(CONDITIONS) + " |",
        "| --- | --- |" + " --- |" * len(CONDITIONS),
    ]
    with ThreadPoolExecutor(2) as pool:
        cells = {
            (name, label): pool.submit(measured, name, arguments, pythons.get(distribution, ""))
            for name, _, distribution in FRAMEWORKS
            for label, arguments in CONDITIONS.items()
            if (name, label) != ("ignite_engine", "clip")
        }
    for name, title, distribution in FRAMEWORKS:
        row = [cells[name, label].result() if (name, label) in cells else "none built in" for label in CONDITIONS]
        python = pythons.get(distribution, "")
        code = f"from importlib.metadata import version; print(version({distribution!r}))"
        release = asked(python, code) if python else version(distribution)
        lines.append(f"| {title} | {release.partition('+')[0]} | " + " | ".join(row) + " |")
    torch_version = version("torch").partition("+")[0]
    machine = f"Python {platform.python_version()}, torch {torch_version} on a CPU, {datetime.date.today()}"
    text = (ROOT / "benchmarks" / "frameworks_notes.md").read_text(encoding="utf-8")
    given.output.write_text(text.replace("{table}", "\n".join(lines)).replace("{machine}", machine), encoding="utf-8")


if __name__ == "__main__":
    main()
