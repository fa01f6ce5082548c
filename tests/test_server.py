"""The language server, through a client over standard input and output."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types
from plain_loops import plain_loop
from pygls.lsp.client import LanguageClient

from gradcheck_accum.cli import main

BAD = plain_loop(3)
"""GA101 in the fourth line with a safe fix, GA301 in the sixth with an unsafe one."""


class Editor:
    """A client in one project: what the server shows of each file, and what it says."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.client = LanguageClient("editor", "1")
        self.shown: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()
        self.said: list[str] = []
        self._version = 0

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def show(given: types.PublishDiagnosticsParams) -> None:
            self.shown.put_nowait(given)

        @self.client.feature(types.WINDOW_SHOW_MESSAGE)
        def say(given: types.ShowMessageParams) -> None:
            self.said.append(given.message)

    async def start(self) -> types.InitializeResult:
        await self.client.start_io(sys.executable, "-m", "gradcheck_accum", "server")
        given = types.InitializeParams(types.ClientCapabilities(), root_uri=self.root.as_uri())
        answer = await self.client.initialize_async(given)
        self.client.initialized(types.InitializedParams())
        return answer

    async def stop(self) -> None:
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await self.client.stop()

    def uri(self, name: str) -> str:
        return (self.root / name).as_uri()

    async def open(self, name: str, text: str) -> list[types.Diagnostic]:
        document = types.TextDocumentItem(self.uri(name), "python", self._version, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(document))
        return await self.diagnostics()

    def type(self, name: str, text: str) -> None:
        self._version += 1
        document = types.VersionedTextDocumentIdentifier(self._version, self.uri(name))
        change = types.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))

    async def diagnostics(self) -> list[types.Diagnostic]:
        """What is shown next."""
        given = await asyncio.wait_for(self.shown.get(), 60)
        return list(given.diagnostics)

    async def hover(self, name: str, line: int, column: int) -> Any:
        document, position = types.TextDocumentIdentifier(self.uri(name)), types.Position(line, column)
        return await self.client.text_document_hover_async(types.HoverParams(document, position))

    async def fixes(self, name: str, line: int) -> list[Any]:
        document = types.TextDocumentIdentifier(self.uri(name))
        place = types.Range(types.Position(line, 0), types.Position(line, 99))
        given = types.CodeActionParams(document, place, types.CodeActionContext([]))
        return list(await self.client.text_document_code_action_async(given) or ())


@pytest.fixture
def session(tmp_path: Path) -> Callable[[Callable[[Editor], Awaitable[None]]], None]:
    """Runs what is done in an editor, in a session with a server of its own."""

    def run(done: Callable[[Editor], Awaitable[None]]) -> None:
        async def through() -> None:
            editor = Editor(tmp_path)
            await editor.start()
            try:
                await done(editor)
            finally:
                await editor.stop()

        asyncio.run(through())

    return run


def applied(text: str, action: Any) -> str:
    """A text after a quick fix, as an editor applies it (the texts here are in ASCII)."""
    (edits,) = action.edit.changes.values()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for edit in sorted(edits, key=lambda edit: edit.range.start, reverse=True):
        first, last = (starts[place.line] + place.character for place in (edit.range.start, edit.range.end))
        text = text[:first] + edit.new_text + text[last:]
    return text


Session = Callable[[Callable[[Editor], Awaitable[None]]], None]


def test_a_client_that_is_done_ends_the_server_in_order() -> None:
    def framed(**message: object) -> bytes:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        return b"Content-Length: %d\r\n\r\n" % len(body) + body

    given = {"processId": None, "rootUri": None, "capabilities": {}}
    asked = framed(id=1, method="initialize", params=given) + framed(id=2, method="shutdown") + framed(method="exit")
    command = [sys.executable, "-m", "gradcheck_accum", "server"]
    done = subprocess.run(command, input=asked, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"Content-Length") == 2


def test_findings_come_and_go_while_a_script_is_typed(session: Session) -> None:
    async def typing(editor: Editor) -> None:
        missing, dropped = await editor.open("train.py", BAD)
        assert (missing.code, missing.severity, missing.source) == (
            "GA101",
            types.DiagnosticSeverity.Error,
            "gradcheck-accum",
        )
        assert missing.range == types.Range(types.Position(3, 8), types.Position(3, 23))
        assert missing.message.endswith("help: divide the loss by 3 (the accumulation steps) before backward()")
        assert (dropped.code, dropped.severity) == ("GA301", types.DiagnosticSeverity.Warning)
        editor.type("train.py", BAD.replace("loss.backward()", "(loss / ").replace("% 3 == 0", "% 3 == 0 or"))
        assert await editor.diagnostics() == []  # half typed
        # Of what is typed without a pause only the last is read.
        editor.type("train.py", BAD)
        editor.type("train.py", BAD.replace("loss.backward()", "(loss / 3).backward()"))
        assert [found.code for found in await editor.diagnostics()] == ["GA301"]
        closed = types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(editor.uri("train.py")))
        editor.client.text_document_did_close(closed)
        assert await editor.diagnostics() == []
        assert editor.said == []

    session(typing)


@pytest.mark.slow
def test_the_page_stands_in_the_hover_and_the_fix_is_a_quick_fix(session: Session, tmp_path: Path) -> None:
    async def looking(editor: Editor) -> None:
        await editor.open("train.py", BAD)
        hover = await editor.hover("train.py", 3, 10)
        assert hover.contents.value.startswith("# missing-loss-scaling (GA101)")
        assert await editor.hover("train.py", 0, 0) is None
        (safe,) = await editor.fixes("train.py", 3)
        assert (safe.title, safe.is_preferred) == ("GA101: Divide the loss by 3", True)
        assert [found.code for found in safe.diagnostics] == ["GA101"]
        (unsafe,) = await editor.fixes("train.py", 5)
        assert unsafe.title.endswith(" (unsafe)") and not unsafe.is_preferred
        assert await editor.fixes("train.py", 1) == []
        (tmp_path / "fixed.py").write_text(BAD)
        main(["lint", "--fix", "-q", str(tmp_path / "fixed.py")])
        assert applied(BAD, safe) == (tmp_path / "fixed.py").read_text()

    session(looking)


@pytest.mark.slow
def test_columns_are_counted_as_the_client_counts(session: Session) -> None:
    async def looking(editor: Editor) -> None:
        text = BAD.replace("        loss.backward()", "        '\U0001f600\U0001f600'; loss.backward()")
        missing, _ = await editor.open("train.py", text)
        assert missing.range == types.Range(types.Position(3, 16), types.Position(3, 31))  # in units of UTF-16

    session(looking)


@pytest.mark.slow
def test_the_settings_of_the_project_hold(session: Session, tmp_path: Path) -> None:
    async def looking(editor: Editor) -> None:
        settings = '[tool.gradcheck-accum]\nignore = ["GA301"]\nextend-exclude = ["third_party/"]\n'
        (tmp_path / "pyproject.toml").write_text(settings)
        assert [found.code for found in await editor.open("train.py", BAD)] == ["GA101"]
        assert await editor.open("third_party/train.py", BAD) == []
        (tmp_path / "pyproject.toml").write_text('[tool.gradcheck-accum]\nignore = ["GA1O1"]\n')
        for _ in range(2):
            document = types.TextDocumentIdentifier(editor.uri("train.py"))
            editor.client.text_document_did_save(types.DidSaveTextDocumentParams(document))
            assert await editor.diagnostics() == []
        (said,) = editor.said
        assert "unknown rule 'GA1O1'" in said

    session(looking)
