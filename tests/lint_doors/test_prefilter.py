"""Which files are looked at more closely than their bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.facts import Facts
from gradcheck_accum.lint.program.reach import Reach
from gradcheck_accum.sources.prefilter import may_train_with_others

LOOP = "for x in loader:\n    loss.backward()\n    opt.step()\n"


@pytest.mark.parametrize(
    "source",
    [
        LOOP,
        "class T:\n    def f(self):\n        self.manual_backward(loss)\n        opt.step()\n",
        LOOP.replace("backward(", "backward \\\n ("),
        f'"""Docs."""\n# it\'s a comment\n{LOOP}',
        f's = \'a """ in a string\'\n{LOOP}t = \'"""\'\n',
        f's = """it\\"""s"""\n{LOOP}',
        f"s = 'never ended\n{LOOP}",
        f"# lines as they once ended\n{LOOP}".replace("\n", "\r"),
    ],
)
def test_a_loop_is_not_taken_for_text(source: str) -> None:
    assert may_train_with_others(source.encode(), "train.py")


@pytest.mark.parametrize(
    "source",
    [
        f'"""Use it so:\n\n{LOOP}"""\n',
        f"def f():\n    r'''\n{LOOP}'''\n",
        "".join(f"# {line}\n" for line in LOOP.splitlines()),
        "class F(Function):\n    def backward(ctx, g):\n        return opt.step()\n",
        "for x in loader:\n    opt.prepare_for_backward()\n    opt.step()\n",
    ],
)
def test_what_only_shows_or_defines_a_call_is_no_loop(source: str) -> None:
    assert not may_train_with_others(source.encode(), "train.py")


def test_every_name_of_an_import_over_several_lines_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(f"def show():\n    pass\n\ndef train(loader, opt):\n    {LOOP}")
    imports = "from engine import (  # ours\n    show,\n    train as run,\n)\n"
    train = f"{imports}for epoch in range(9):\n    run(train_loader, optim)\n"
    assert may_train_with_others(train.encode(), str(tmp_path / "train.py"))


def test_a_new_statement_is_not_taken_for_one_that_is_gone() -> None:
    """Programs of our own are asked about too, and their nodes may come to lie where earlier ones lay."""
    reach = Reach(Facts(syntax.parse("")))
    for _ in range(200):
        assert reach.backward(syntax.parse("loss.backward()").body[0])
        assert not reach.backward(syntax.parse("loss.forward()").body[0])
