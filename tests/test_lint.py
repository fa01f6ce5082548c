"""lint on loops as people write them, and on files that are none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from loop_pages import marked_errors, written_loops
from loops_with_places import codes_in
from programs import peers

from gradcheck_accum.cli import main
from gradcheck_accum.lint import lint_paths, lint_source

LOOPS = [*written_loops().items(), *peers().items()]

SUPPRESSED = """\
def train(model, loader, optimizer):
    for i, batch in enumerate(loader):
        loss = model(batch).loss
        loss.backward(){comment}
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(("name", "source"), LOOPS, ids=[name for name, _ in LOOPS])
def test_a_loop_shows_its_mistakes_and_no_others(name: str, source: str) -> None:
    assert {(f.where.line, f.mistake.name) for f in lint_source(source, f"{name}.py")} == marked_errors(source)
    assert ("right_" in name) == (not marked_errors(source))


@pytest.mark.parametrize(
    "comment",
    [
        "  # gradcheck-accum: ignore",
        "  # gradcheck-accum: ignore[GA101]",
        "  # gradcheck-accum: ignore[missing-loss-scaling]",
        "  # noqa: GA101",
        "  # noqa: E501, GA101",
    ],
)
def test_a_comment_suppresses_its_own_code(comment: str) -> None:
    assert codes_in(SUPPRESSED.format(comment="")) == ["GA101"]
    assert lint_source(SUPPRESSED.format(comment=comment), "train.py") == []


@pytest.mark.parametrize(
    "comment", ["  # gradcheck-accum: ignore[GA102]", "  # noqa: E501", "  # nothing: ignore[GA101]"]
)
def test_other_comments_suppress_nothing(comment: str) -> None:
    assert codes_in(SUPPRESSED.format(comment=comment)) == ["GA101"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("broken.py", b"def f(:\n", "not valid Python 3."),
        ("latin.py", b"loss = '\xe9'\n", "not UTF-8"),
        ("nul.py", b"x = 1\0\n", "not valid Python 3."),
        ("huge.py", b"#" * (4 * 1024 * 1024 + 1), "larger than 4 MiB"),
        ("deep.py", b"x = " + b"(" * 5000 + b")" * 5000, "not valid Python 3."),
        ("newer.py", b"x = 1\nfrom tomorrow use grammar\n", "not valid Python {}.{} (line 2): "),
    ],
)
def test_a_file_that_cannot_be_analysed_is_one_line_and_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert main(["lint", str(path)]) == 2
    out, err = capsys.readouterr()
    assert reason.format(*sys.version_info) in err
    assert err.count("\n") == 1
    assert "Traceback" not in out + err
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["absent.py", "empty"])
def test_a_path_without_python_is_one_line_and_2(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["lint", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_one_bad_file_does_not_hide_the_findings_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(:\n    loss.backward()\n    optimizer.step()\n")
    (tmp_path / "b.py").write_text(SUPPRESSED.format(comment=""))
    result = lint_paths([str(tmp_path)])
    assert [f.mistake.code for f in result.findings] == ["GA101"]
    assert len(result.unreadable) == 1


def test_a_file_that_holds_no_loop_is_only_parsed_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("def f(:\n")
    (tmp_path / "train.py").write_text(SUPPRESSED.format(comment=""))
    assert lint_paths([str(tmp_path)]).unreadable == ()
    assert len(lint_paths([str(tmp_path / "helpers.py")]).unreadable) == 1


def test_the_code_is_never_run_and_pytorch_never_imported(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('run')\n" + SUPPRESSED.format(comment=""))
    code = (
        "import sys; from gradcheck_accum.cli import main; status = main(['lint', sys.argv[1]]); "
        "assert 'torch' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert "GA101" in done.stdout


def test_what_cannot_be_known_is_no_finding() -> None:
    source = """\
from somewhere import scale_loss, should_step

def train(model, loader, optimizer):
    for i, batch in enumerate(loader):
        loss = scale_loss(model(batch))
        loss.backward()
        if should_step(i):
            optimizer.step()
            optimizer.zero_grad()
"""
    assert lint_source(source, "train.py") == []


@pytest.mark.parametrize(
    ("parameter", "told"),
    [("steps", " (taking steps as 4)"), ("steps=8", " (taking steps as 8)"), ("x, steps: int", " (taking steps as 4)")],
)
def test_a_number_that_was_assumed_is_said_to_be(parameter: str, told: str) -> None:
    source = SUPPRESSED.format(comment="").replace("optimizer)", f"optimizer, {parameter})").replace("% 4", "% steps")
    (finding,) = lint_source(source, "train.py")
    assert finding.message.endswith(told)


def test_a_number_that_the_source_has_is_not() -> None:
    (finding,) = lint_source(SUPPRESSED.format(comment=""), "train.py")
    assert "taking" not in finding.message


def test_a_long_window_is_run_whole() -> None:
    source = """\
def train(model, data, optimizer, criterion, steps):
    for _ in range(steps):
        for micro in range(128):
            x, y = next(data)
            loss = criterion(model(x), y) / {divisor}
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    assert lint_source(source.format(divisor=128), "train.py") == []
    assert codes_in(source.format(divisor=1)) == ["GA101"]


def test_a_quotient_of_settings_is_one_number() -> None:
    source = """\
total_batch_size = 524288
steps = total_batch_size // (B * T * world_size)
optimizer = model.configure_optimizers(lr=1e-3)
for step in range(max_steps):
    optimizer.zero_grad()
    for micro in range(steps):
        x, y = loader.next_batch()
        logits, loss = model(x, y)
        {scale}
        loss.backward()
    optimizer.step()
"""
    assert lint_source(source.format(scale="loss = loss / steps"), "train.py") == []
    assert codes_in(source.format(scale="pass")) == ["GA101"]


@pytest.mark.parametrize(
    ("fake", "of_the_critic"),
    [
        # Nothing shows whose the loss is that flows through both.
        ("fake", []),
        ("fake.detach()", [(8, "GA103"), (8, "GA204")]),
    ],
)
def test_windows_in_which_another_optimizers_loss_has_left_gradients(
    fake: str, of_the_critic: list[tuple[int, str]]
) -> None:
    source = (
        "def train(G, D, loader, opt_g, opt_d, bce, K):\n"
        "    opt_g, opt_d = torch.optim.SGD(G.parameters()), torch.optim.SGD(D.parameters())\n"
        "    for i, x in enumerate(loader):\n"
        "        fake = G(x)\n"
        f"        (bce(D(x), 1) / K + bce(D({fake}), 0) / K).backward()\n"
        "        if (i + 1) % K == 0 or i + 1 == len(loader):\n"
        "            opt_d.step()\n"
        "            opt_d.zero_grad()\n"
        "        (bce(D(fake), 1) / K).backward()\n"
        "        if (i + 1) % K == 0 or i + 1 == len(loader):\n"
        "            opt_g.step()\n"
        "            opt_g.zero_grad()\n"
    )
    found = lint_source(f"import torch\n{source}", "gan.py")
    assert [(f.where.line, f.mistake.code) for f in found] == [*of_the_critic, (12, "GA103")]


def test_models_and_optimizers_that_are_made_on_one_line_are_two() -> None:
    source = """\
import torch
from torch import nn
from lightning import LightningModule


class Gan(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.g, self.d = nn.Linear(3, 6), nn.Linear(6, 1)

    def training_step(self, batch, i):
        og, od = self.optimizers()
        loss = self.d(batch).mean()
        self.manual_backward(loss)
        loss = self.d(self.g(batch)).mean()
        self.manual_backward(loss)
        od.step()
        og.step()
        od.zero_grad()
        og.zero_grad()

    def configure_optimizers(self):
        return torch.optim.Adam(self.g.parameters(), 1e-3), torch.optim.Adam(self.d.parameters(), 1e-3)
"""
    assert not lint_source(source, "train.py")
    once = codes_in(source.replace("        og.zero_grad()\n", ""))
    assert once == ["GA204"]


@pytest.mark.parametrize("settings", ["dict(lr=0.1, accum=3)", "dict({'lr': 0.1}, accum=3)", "{'lr': 0.1, 'accum': 3}"])
def test_settings_that_a_call_of_dict_makes(settings: str) -> None:
    source = """
import torch
from torch import nn
def train(batches, settings):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"])
    for i, (x, y) in enumerate(batches):
        (nn.functional.mse_loss(model(x), y) / settings["accum"]).backward()
        if (i + 1) % settings["accum"] == 0:
            optimizer.step()
            optimizer.zero_grad()
train([(torch.randn(2, 3), torch.randn(2, 1)) for _ in range({count})], {settings})
"""
    filled = source.replace("{settings}", settings)
    assert not lint_source(filled.replace("{count}", "9"), "train.py")
    assert codes_in(filled.replace("{count}", "10")) == ["GA301"]


def test_what_the_others_loss_leaves_is_cleared_too_late() -> None:
    source = """
import torch
from torch import nn
G, D = nn.Linear(3, 6), nn.Linear(6, 1)
of_g, of_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
bce = nn.BCEWithLogitsLoss()
batches = iter(loader)
for update in range(1000):
    {before}
    for _ in range(4):
        (bce(D(next(batches)), torch.ones(5, 1)) / 4).backward()
    of_d.step()
    of_d.zero_grad()
    for _ in range(4):
        (bce(D(G(next(batches))), torch.ones(5, 1)) / 4).backward()
    of_g.step()
    of_g.zero_grad()
"""
    assert not lint_source(source.format(before="of_d.zero_grad()"), "train.py")
    found = lint_source(source.format(before="pass"), "train.py")
    assert [(f.mistake.code, f.where.line) for f in found] == [("GA204", 12)]


TURNS = """
import torch
from torch import nn
G, D = nn.Linear(3, 6), nn.Linear(6, 1)
of_g, of_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
bce = nn.BCEWithLogitsLoss()
for x, z in loader:
    {before}
    (bce(D(x), torch.ones(5, 1)) + bce(D(G(z).detach()), torch.zeros(5, 1))).backward()
    of_d.step()
    of_d.zero_grad()
    of_g.zero_grad()
    bce(D(G(z)), torch.ones(5, 1)).backward()
    of_g.step()
"""


def test_what_the_others_loss_leaves_is_seen_where_both_take_the_same_batch() -> None:
    assert not lint_source(TURNS.format(before="of_d.zero_grad()"), "train.py")
    found = lint_source(TURNS.format(before="pass"), "train.py")
    assert [(f.mistake.code, f.where.line) for f in found] == [("GA204", 10)]


SKIPPING = """\
from itertools import cycle

def train(model, batches, optimizer, K, action):
    count = 0
    for batch in cycle(batches):
        loss = model(batch).mean() / K
        loss.backward()
        if suspicious(loss):
            if action == "skip":
                optimizer.zero_grad()
                continue
            {otherwise}
        count += 1
        if count % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "otherwise", ["pass", "else:\n                warn(loss)", "elif action:\n                log(loss)"]
)
def test_the_main_path_goes_on_whatever_else_there_is_to_giving_up(otherwise: str) -> None:
    assert lint_source(SKIPPING.format(otherwise=otherwise), "train.py") == []


def test_what_is_returned_on_either_side_is_no_guard() -> None:
    source = """def loss_of(model, batch, kind, K):
    if kind == "mean":
        return model(batch).mean()
    else:
        return model(batch).mean() / K

def train(model, batches, optimizer, K, kind):
    for i, batch in enumerate(batches):
        loss_of(model, batch, {kind}, K).backward()
        if (i + 1) % K == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()
"""
    assert codes_in(source.format(kind='"mean"')) == ["GA101"]
    assert lint_source(source.format(kind="kind"), "train.py") == []


ONE_CALL = """class {cls}:
    def {setup}(self):
        self.optimizer.zero_grad()

    def {name}(self):
        for batch in self.batches:
            (self.model(batch).mean() / len(self.batches)).backward()
        self.optimizer.step()
"""


def test_a_test_is_called_once_on_what_was_set_up_for_it() -> None:
    test = ONE_CALL.format(cls="TestSums", setup="setUp", name="test_sums")
    assert lint_source(test, "test_sums.py") == []
    other = ONE_CALL.format(cls="Sums", setup="prepare", name="run_epoch")
    assert [f.mistake.code for f in lint_source(other, "sums.py")] == ["GA203"]


def test_a_step_that_ends_in_an_exception_is_no_error_of_ours() -> None:
    source = """\
import lightning

class Module(lightning.LightningModule):
    def __init__(self):
        self.automatic_optimization, self.kind = False, "a"

    def training_step(self, batch, batch_idx):
        if self.kind == "b":
            loss = self.model(batch)
        else:
            raise ValueError(self.kind)
        self.manual_backward(loss)
        self.optimizers().step()
"""
    assert lint_source(source, "module.py") == []


PASSED_THROUGH = """\
import torch

class Log:
    def __init__(self):
        self.seen = []
    def every(self, batches, n):
        for i, batch in enumerate(batches):
            {give}
            self.seen.append(i)
            if i % n == 0:
                print(len(self.seen))

loader = [(torch.randn(3, 4), torch.randint(0, 2, (3,))) for _ in range({count})]
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters())
log = Log()
for epoch in range(2):
    for i, (x, y) in enumerate(log.every(loader, 7)):
        loss = torch.nn.functional.cross_entropy(model(x), y) / 4
        loss.backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("give", "count", "expected"),
    [
        ("yield batch", 12, []),
        ("yield batch", 13, ["GA301"]),
        ("yield batch[0], batch[1]", 8, []),
        ("if i > 0:\n                yield batch", 13, []),
        ("if i > 0:\n                yield batch", 12, ["GA301"]),
        ("if usable(batch):\n                yield batch", 12, ["GA301"]),
    ],
)
def test_a_generator_gives_as_many_batches_as_it_yields(give: str, count: int, expected: list[str]) -> None:
    found = lint_source(PASSED_THROUGH.format(give=give, count=count), "train.py")
    assert [f.mistake.code for f in found] == expected


def test_a_generator_over_data_of_unknown_length_may_leave_a_remainder() -> None:
    source = PASSED_THROUGH.format(give="yield batch", count=12).replace("every(loader, 7)", "every(load(), 7)")
    assert codes_in(source) == ["GA301"]


MADE = """\
import torch
from torch import nn
model, other = nn.Linear(4, 2), nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters())
criterion = nn.CrossEntropyLoss()
X, Y = torch.randn(120, 4), torch.randint(0, 2, (120,))
K = 4
"""
MADE_LOOPS = {
    "a batch at every turn": """\
for step in range(40):
    x, y = torch.randn(3, 4), torch.randint(0, 2, (3,))
    loss = criterion(model(x), y){by}
    loss.backward()
    if (step + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "a window inside a turn": """\
for step in range(10):
    optimizer.zero_grad()
    for _ in range(K):
        x = torch.rand(3, 4).to("cpu")
        loss = model(x).pow(2).mean(){by}
        loss.backward()
    optimizer.step()
""",
    "rows chosen at random": """\
for step in range(10):
    optimizer.zero_grad()
    for _ in range(K):
        rows = torch.randint(0, 120, (3,))
        loss = criterion(model(X[rows]), Y[rows]){by}
        loss.backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("what", MADE_LOOPS)
def test_data_that_a_loop_makes_itself_are_its_micro_batches(what: str) -> None:
    loop = MADE + MADE_LOOPS[what]
    assert lint_source(loop.format(by=" / K"), "train.py") == []
    assert codes_in(loop.format(by="")) == ["GA101"]


@pytest.mark.parametrize(
    "loop",
    [
        # Noise on a batch that is given.
        """\
for x, y in loader:
    optimizer.zero_grad()
    for _ in range(K):
        criterion(model(x + torch.randn(3, 4)), y).backward()
    optimizer.step()
""",
        # Two parts of one turn.
        """\
for step in range(10):
    optimizer.zero_grad()
    criterion(model(torch.randn(3, 4)), torch.zeros(3).long()).backward()
    criterion(model(torch.randn(3, 4)), torch.ones(3).long()).backward()
    optimizer.step()
""",
        # A batch that is made once, and drawn for several times.
        """\
for step in range(10):
    optimizer.zero_grad()
    x, y = torch.randn(3, 4), torch.randint(0, 2, (3,))
    for _ in range(K):
        noise = torch.randn(3, 4)
        criterion(model(x) + other(x, noise), y).backward()
    optimizer.step()
""",
        # Latents, before the batch of the turn is drawn.
        """\
batches = iter(loader)
for step in range(10):
    optimizer.zero_grad()
    z = torch.randn(3, 4)
    x, y = next(batches)
    criterion(model(z), y).backward()
    criterion(model(x), y).backward()
    optimizer.step()
""",
        # The same numbers at every turn.
        """\
for step in range(10):
    optimizer.zero_grad()
    for _ in range(K):
        criterion(model(torch.ones(3, 4)), torch.ones(3).long()).backward()
    optimizer.step()
""",
    ],
)
def test_random_numbers_that_are_no_batch(loop: str) -> None:
    assert lint_source(MADE + loop, "train.py") == []
