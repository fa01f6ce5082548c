"""What processes hand to each other is data: whatever somebody else has put in its place is refused, and never run."""

from __future__ import annotations

import ast
import json
import multiprocessing
import os
import pickle
import tracemalloc
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from page_results import COST, RESULTS

import gradcheck_accum
from gradcheck_accum.cli import main
from gradcheck_accum.comparing import compared_loop
from gradcheck_accum.comparing.messages import Order, Over, receive, send
from gradcheck_accum.comparing.rows import Rows
from gradcheck_accum.comparing.state import State
from gradcheck_accum.engine.tensors_as_data import OF_OPTIMIZERS
from gradcheck_accum.ledger import events
from gradcheck_accum.ledger.events import Event
from gradcheck_accum.ledger.windows import Fate
from gradcheck_accum.portable import NotPortable, Portable
from gradcheck_accum.results.verdict import Accepted, Verdict, VerifyResult
from gradcheck_accum.verify.judge.options import Options
from gradcheck_accum.verify.process.result_file import read_result, written
from gradcheck_accum.verify.ranks import rank_report
from gradcheck_accum.verify.ranks.folder import Folder
from gradcheck_accum.verify.ranks.gathering import report_of_rank
from gradcheck_accum.verify.ranks.launch import Launch
from gradcheck_accum.verify.ranks.mailbox import LaunchError
from gradcheck_accum.verify.ranks.rank_report import RankReport
from gradcheck_accum.verify.session import Observation, observe

PACKAGE = Path(gradcheck_accum.__file__).parent


class Evil:
    """Creates a file when it is read from a pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    return tmp_path / "trapped"


@pytest.fixture
def evil(trap: Path) -> bytes:
    """A pickle that would create what `trap` names, as this shows."""
    content = pickle.dumps(Evil(trap))
    pickle.loads(content)
    assert trap.exists()
    trap.rmdir()
    return content


def trained(rows: int = 5, steps: int = 3, windows: int = 2) -> Observation:
    """What is seen of a loop over windows of ``steps`` micro-batches of ``rows``, its loss divided as it should be."""
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe(script="train.py", reference="ledger") as observation:
        for number in range(steps * windows):
            loss = model(torch.randn(rows, 4).double()).square().mean()
            (loss / steps).backward()
            if (number + 1) % steps == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.7)
                optimizer.step()
                optimizer.zero_grad()
    return observation


# The format

CONTENT = Portable([Verdict], OF_OPTIMIZERS)


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """Known by its identity, as events are."""

    name: str


@dataclass(slots=True)
class Pair:
    """Calls something when it is made by its constructor."""

    left: Any
    right: Any

    def __post_init__(self) -> None:
        calls.append(self)


calls: list[Pair] = []


@pytest.mark.parametrize(
    "value",
    [
        None,
        [True, 3, -2.5, float("inf"), "\ud800 ä", b"\x00\xff", b""],
        {(1, "a"): {2, 3}, None: frozenset({"b"})},
        (Counter({b"ab": 3}), OrderedDict(b=1, a=2), 10**60),
        [Verdict.DEVIATES, torch.bfloat16, torch.Size([3, 5]), torch.device("cpu")],
    ],
    ids=["nothing", "plain", "mappings", "more mappings", "leaves"],
)
def test_what_is_written_is_read_again(value: object) -> None:
    read = CONTENT.loads(CONTENT.dumps(value))
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(15.0).reshape(3, 5).t(),
        torch.tensor(0.7, dtype=torch.float64),
        torch.zeros(0, 4),
        torch.tensor([1.5, -2.0]).bfloat16(),
        torch.tensor([True, False]),
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(torch.randn(3)),
        torch.tensor([1 + 2j]),
    ],
    ids=["of a view", "of no dimension", "of nothing", "of bfloat16", "of truths", "sparse", "a parameter", "complex"],
)
def test_tensors_are_read_bit_by_bit(tensor: torch.Tensor) -> None:
    read = CONTENT.loads(CONTENT.dumps([tensor]))[0]
    assert (read.dtype, read.shape, read.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert torch.equal(read.to_dense(), tensor.detach().to_dense())
    if read.layout is torch.strided:
        read.add_(1) if read.dtype != torch.bool else read.zero_()


def test_a_queue_keeps_its_length() -> None:
    read = CONTENT.loads(CONTENT.dumps(deque([1, 2], maxlen=3)))
    assert (read, read.maxlen) == (deque([1, 2]), 3)


def test_one_object_is_one_object_again_and_no_constructor_is_called() -> None:
    portable, one = Portable([Shared, Pair]), Shared("step")
    content = portable.dumps([one, Pair(one, [one, Shared("step")])])
    calls.clear()
    first, pair = portable.loads(content)
    assert first is pair.left is pair.right[0] is not pair.right[1]
    assert not calls


@pytest.mark.parametrize("value", [object(), lambda: 0, Shared("not listed"), os.system, type("Verdict", (), {})()])
def test_what_is_no_data_is_not_written(value: object) -> None:
    with pytest.raises(NotPortable, match="cannot be passed to another process"):
        CONTENT.dumps([value])


def test_what_holds_itself_is_not_written() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(NotPortable, match="in itself"):
        CONTENT.dumps(value)


def _content(header: str, blobs: bytes = b"") -> bytes:
    text = header.encode()
    return b"gradcheck-accum data 1\n" + len(text).to_bytes(8, "big") + text + blobs


HOSTILE = {
    "nothing": b"",
    "zeros": bytes(100),
    "another version": b"gradcheck-accum data 2\n" + bytes(8),
    "no JSON": _content("{]"),
    "an object": _content('{"a": 1}'),
    "a function": _content('["system", "touch trapped"]'),
    "a module's function": _content('["os.system", ["str", "touch trapped"]]'),
    "an empty list": _content("[]"),
    "an unhashable name": _content('[["list"], 1]'),
    "an unhashable key": _content('["dict", ["list"], 1]'),
    "half a mapping": _content('["dict", 1]'),
    "a value that no enumeration has": _content('["Verdict", "right"]'),
    "an instance that is not there": _content('["again", 0]'),
    "an instance from the end": _content('["again", -1]'),
    "bytes that are not there": _content('["bytes", 3]'),
    "a dtype that is a function": _content('["dtype", "load"]'),
    "a device that there is not": _content('["device", "toaster:9"]'),
    "a tensor of more than its bytes": _content(
        '["Tensor", ["list", ["memoryview", 0], ["dtype", "float64"], ["list", 1000000], "cpu"]]',
        (8).to_bytes(8, "big") + bytes(8),
    ),
    "a header that never ends": b"gradcheck-accum data 1\n" + b"\xff" * 8,
    "bytes that never end": _content("1", (1 << 62).to_bytes(8, "big")),
    "nested deeply": _content("[" * 100_000),
    "nested deeply in kinds": _content('["list",' * 50_000 + "1" + "]" * 50_000),
    "a number without end": _content("9" * 10_000),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_content_is_refused_in_one_line(content: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(NotPortable) as refused:
        CONTENT.loads(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert str(refused.value).startswith("not what gradcheck-accum writes (")
    assert "\n" not in str(refused.value)
    assert peak < 64 * 2**20


def test_a_tensor_that_is_a_pickle_is_not_run(trap: Path) -> None:
    saved = trap.with_suffix(".pt")
    torch.save(Evil(trap), saved)
    blob = saved.read_bytes()
    with pytest.raises(NotPortable):
        CONTENT.loads(_content('["Tensor", ["bytes", 0]]', len(blob).to_bytes(8, "big") + blob))
    assert not trap.exists()


# Every exchange

BY_ITS_OWN_COMMAND_LINE = """\
import os
command = open("/proc/self/cmdline", "rb").read().split(b"\\0")
answer = next(part for part in command if part.endswith(b"answer"))
open(answer, "wb").write({content!r})
os._exit(0)
"""


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="the script could not find the file")
def test_a_script_that_writes_its_own_result_is_one_line_and_2(
    tmp_path: Path, evil: bytes, trap: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(BY_ITS_OWN_COMMAND_LINE.format(content=evil))
    assert main(["verify", str(script)]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"gradcheck-accum: {script}: the run's result cannot be read: not what gradcheck-accum")
    assert not trap.exists()


def test_a_result_is_that_of_the_run() -> None:
    result = trained().result()
    assert result.verdict is Verdict.EQUIVALENT
    assert read_result(written(result)) == result
    for one in RESULTS.values():
        if isinstance(one, VerifyResult):
            accepted = tuple(Accepted(diagnosis, "settings") for diagnosis in one.diagnosis)
            one = replace(one, accepted=accepted, cost=COST)
            assert read_result(written(one)) == one
    with pytest.raises(NotPortable, match="not the result of a run"):
        read_result(Portable([]).dumps([1]))


@pytest.mark.parametrize("kind", ["a pickle", "a checkpoint", "another value", "an account that says nothing"])
def test_the_account_of_a_rank_that_is_none_is_one_line_and_2(
    kind: str, tmp_path: Path, evil: bytes, trap: Path
) -> None:
    contents = {
        "a pickle": evil,
        "another value": Portable([]).dumps(["RankReport"]),
        "an account that says nothing": _content('["RankReport", null, null]'),
    }
    if kind == "a checkpoint":
        torch.save(Evil(trap), tmp_path / "saved")
        contents[kind] = (tmp_path / "saved").read_bytes()
    launch = Launch(0, 2, Folder(tmp_path / "mailbox"))
    launch.enter()
    Launch(1, 2, launch.mailbox).deliver(contents[kind])
    result = report_of_rank(launch, trained(), "train.py", "")
    assert result is not None
    assert result.exit_status == 2
    assert result.error.startswith("the account of rank 1 cannot be read: not ")
    assert not trap.exists()


def test_every_event_can_be_told() -> None:
    kinds: list[type[Any]] = [Event]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {kind.__name__ for kind in kinds[1:]} <= set(rank_report._REPORTS._classes)


def test_so_can_what_events_consist_of() -> None:
    own = {kind for kind in vars(events).values() if isinstance(kind, type) and kind.__module__ == events.__name__}
    assert {kind.__name__ for kind in own - {Event}} <= set(rank_report._REPORTS._classes)


def test_an_account_is_what_the_rank_saw() -> None:
    seen = trained().seen().portable()
    read = RankReport.read(RankReport(seen, Options(), "interrupted").written())
    assert read.error == "interrupted"
    # What the judgement joins by identity is still joined.
    steps = [window.step for window in read.seen.ledger().windows]
    assert [measured.step for measured in read.seen.measured] == steps != []
    live = [entry.backward for window in read.seen.ledger().windows for entry in window.with_fate(Fate.LIVE)]
    assert [record.event for measured in read.seen.measured for record in measured.records] == live
    for own, theirs in zip(seen.measured, read.seen.measured, strict=True):
        assert own.products is not None and theirs.products is not None
        assert torch.equal(own.products.matrix, theirs.products.matrix)
        assert own.own_norms == theirs.own_norms


@pytest.mark.parametrize("told", [b"\x80\x04.", b"[1]", b'["0", "a", false]', b"[1, 2, 3]", b"[" * 10_000, b"\xff"])
def test_what_ranks_do_not_tell_is_not_heard(told: bytes, tmp_path: Path) -> None:
    launch = Launch(0, 2, Folder(tmp_path / "mailbox"))
    launch.enter()
    launch.mailbox.tell(1, told)
    assert launch.failures() == {}
    launch.mailbox.put("begun-1", told)
    assert not launch.mailbox.is_running(1, 0.0)


def test_the_state_of_another_run_that_is_none_is_refused(tmp_path: Path, evil: bytes, trap: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(evil)
    with pytest.raises(NotPortable):
        State.read(path)
    assert not trap.exists()


def test_a_visitor_that_speaks_in_pickles_is_not_listened_to(evil: bytes, trap: Path) -> None:
    here, there = multiprocessing.Pipe()
    there.send_bytes(evil)
    with pytest.raises(EOFError):
        receive(here)
    assert not trap.exists()
    rows = Rows({(0, "int64"): Counter({b"abcdefgh": 2, b"ijklmnop": 3})}, {(1, "bool")}, 5, True)
    for message in (Order.BOTH, Over({"SGD": rows, "Adam": None, "none": Rows()}, ())):
        send(there, message)
        assert receive(here) == message


def test_a_cache_or_a_baseline_that_is_a_pickle_is_not_run(
    tmp_path: Path, evil: bytes, trap: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one.py", "two.py"):
        Path(name).write_text("loss.backward()\noptimizer.step()\n")
    Path(".gradcheck-accum-cache").mkdir()
    cache = Path(".gradcheck-accum-cache", "lint.json")
    cache.write_bytes(evil)
    assert main(["lint", "one.py", "two.py"]) == main(["lint", "--no-cache", "one.py", "two.py"])
    assert json.loads(cache.read_text())["files"]
    Path("baseline.json").write_bytes(evil)
    assert main(["lint", "--baseline", "baseline.json", "one.py"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not trap.exists()


@pytest.mark.parametrize("free", [False, True])
def test_what_an_optimizer_keeps_and_is_no_data_is_named(free: bool) -> None:
    def loop(rows: int, steps: int) -> None:
        torch.manual_seed(2)
        model = torch.nn.Linear(4, 3).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.randn(30, 4).double(), torch.randint(0, 3, (30,))
        for number, start in enumerate(range(0, 30, rows)):
            loss = torch.nn.functional.cross_entropy(model(x[start : start + rows]), y[start : start + rows])
            (loss / steps).backward()
            if (number + 1) % steps == 0:
                optimizer.step()
                optimizer.state[model.weight]["projector"] = Evil(Path("nowhere"))
                optimizer.zero_grad()

    result = compared_loop(loop, [{"rows": 5, "steps": 3}, {"rows": 15, "steps": 1}], free=free)
    if free:
        assert (result.error, len(result.compared[0].steps)) == ("", 2)
    else:
        assert "what the optimizer keeps cannot be passed to the other runs: a " in result.error
        assert "Evil" in result.error


@pytest.mark.parametrize("kind", ["a directory that others may enter", "a link", "a file"])
def test_ranks_meet_in_no_folder_that_others_may_write_to(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    if kind == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        path.symlink_to("elsewhere")
    elif kind == "a file":
        path.write_text("")
    else:
        path.mkdir()
        path.chmod(0o755)
    with pytest.raises(LaunchError, match="ranks"):
        Folder(path).enter(0)
    assert not path.is_dir() or not list(path.iterdir())


def test_nothing_in_the_package_reads_a_pickle() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.partition(".")[0] for alias in node.names} | {getattr(node, "module", "") or ""}
                assert not names & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr != "recv", f"{path}:{node.lineno}: a connection's recv() reads a pickle"
                if ast.unparse(node.func) == "torch.load":
                    assert "weights_only=True" in ast.unparse(node), path
