"""A language server on standard input and output: shows the findings of ``lint`` while a script is being edited.

Findings are diagnostics, hovering over one shows the mistake's page, and its fix is a quick fix: a safe one is
preferred, an unsafe one is labeled. A text that cannot be parsed, perhaps half typed, shows nothing: the findings of an
earlier version would be at the wrong places.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from lsprotocol import types
from pygls import uris
from pygls.lsp.server import LanguageServer
from pygls.workspace import PositionCodec

from gradcheck_accum import __version__
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint.project.run import lint_given
from gradcheck_accum.mistakes import Severity
from gradcheck_accum.results.findings import Edit, Finding
from gradcheck_accum.rule_pages import readable_page
from gradcheck_accum.settings import SettingsError, settings_for

PAUSE = 0.2
"""Seconds without a keystroke after which a text is read."""

_SOURCE = "gradcheck-accum"
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
}


@dataclass(frozen=True, slots=True)
class _Read:
    """The findings in one version of a text; ``codec`` counts columns as the client does."""

    version: int | None
    lines: tuple[str, ...]
    findings: tuple[Finding, ...]
    codec: PositionCodec

    def diagnostics(self) -> list[types.Diagnostic]:
        """The findings as the client shows them."""
        return [self.diagnostic(finding) for finding in self.findings]

    def diagnostic(self, finding: Finding) -> types.Diagnostic:
        """One finding as the client shows it."""
        return types.Diagnostic(
            self.range(finding.where),
            f"{finding.message}\nhelp: {finding.help}" if finding.help else finding.message,
            severity=_SEVERITIES[finding.severity],
            code=finding.mistake.code,
            source=_SOURCE,
        )

    def range(self, where: Location | Edit) -> types.Range:
        """A place in the client's coordinates; up to the end of the line if its own end is unknown."""
        end_line, end_column = where.end_line, where.end_column
        if not end_line or not end_column:
            end_line, end_column = where.line, len(self.lines[where.line - 1].rstrip("\r\n")) + 1
        place = types.Range(_position(where.line, where.column), _position(end_line, end_column))
        return self.codec.range_to_client_units(self.lines, place)

    def at(self, place: types.Range) -> list[Finding]:
        """The findings that ``place`` touches."""
        ranges = ((finding, self.range(finding.where)) for finding in self.findings)
        return [finding for finding, its in ranges if its.start <= place.end and place.start <= its.end]


def _position(line: int, column: int) -> types.Position:
    return types.Position(line - 1, column - 1)


class _Server(LanguageServer):
    """Remembers the findings in open texts."""

    def __init__(self) -> None:
        super().__init__(_SOURCE, __version__)
        self._read: dict[str, _Read] = {}
        # One text at a time: parsing changes process-wide settings (the recursion limit).
        self._reader = ThreadPoolExecutor(1)
        self._complaint = ""

    async def look(self, uri: str, *, at_once: bool = False) -> None:
        """Lint a text and show the findings, unless a newer version arrives first."""
        version = self.workspace.get_text_document(uri).version
        if not at_once:
            await asyncio.sleep(PAUSE)
        if not self._is_current(uri, version):
            return
        text = self.workspace.get_text_document(uri).source
        findings = await asyncio.get_running_loop().run_in_executor(self._reader, self._findings, uri, text)
        if self._is_current(uri, version):
            read = _Read(version, tuple(_LINE.findall(text)), findings, self.workspace.position_codec)
            self._read[uri] = read
            self._show(uri, read.diagnostics(), version)

    def forget(self, uri: str) -> None:
        """Show no more findings of a closed text."""
        self._read.pop(uri, None)
        self._show(uri, [], None)

    def found(self, uri: str) -> _Read | None:
        """The findings in the current version of the text, if it has been linted."""
        read = self._read.get(uri)
        return read if read and self._is_current(uri, read.version) else None

    def _is_current(self, uri: str, version: int | None) -> bool:
        document = self.workspace.text_documents.get(uri)
        return document is not None and document.version == version

    def _findings(self, uri: str, text: str) -> tuple[Finding, ...]:
        path = uris.to_fs_path(uri) or uri
        try:
            # Like a commit hook, an editor passes file names: files that the project excludes are not linted.
            settings = replace(settings_for([path]), force_exclude=True)
            result = lint_given(text.encode(errors="surrogatepass"), path, settings, report_unused=False)
        except SettingsError as error:
            self._complain(str(error))
            return ()
        self._complaint = ""
        return tuple(finding for finding in result.findings if finding.where.path == path)

    def _complain(self, complaint: str) -> None:
        """Report an error in the settings, once."""
        if complaint != self._complaint:
            self._complaint = complaint
            self.window_show_message(types.ShowMessageParams(types.MessageType.Warning, f"{_SOURCE}: {complaint}"))

    def _show(self, uri: str, diagnostics: list[types.Diagnostic], version: int | None) -> None:
        shown = types.PublishDiagnosticsParams(uri, diagnostics, version)
        self.text_document_publish_diagnostics(shown)


def serve() -> None:
    """Serve a client on standard input and output until it disconnects."""
    made().start_io()


def made() -> _Server:
    """The server with all of its handlers."""
    server = _Server()

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    async def opened(given: types.DidOpenTextDocumentParams) -> None:
        await server.look(given.text_document.uri, at_once=True)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(given: types.DidChangeTextDocumentParams) -> None:
        await server.look(given.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    async def saved(given: types.DidSaveTextDocumentParams) -> None:
        # Other files may have changed: settings, or modules in the same project.
        await server.look(given.text_document.uri, at_once=True)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(given: types.DidCloseTextDocumentParams) -> None:
        server.forget(given.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(given: types.HoverParams) -> types.Hover | None:
        read = server.found(given.text_document.uri)
        touched = read.at(types.Range(given.position, given.position)) if read else []
        pages = [page for finding in touched if (page := readable_page(finding.mistake))]
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, "\n\n".join(pages))) if pages else None

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix])
    )
    def quick_fixes(given: types.CodeActionParams) -> list[types.CodeAction]:
        read = server.found(given.text_document.uri)
        return list(_fixes(read, given.text_document.uri, read.at(given.range))) if read else []

    return server


def _fixes(read: _Read, uri: str, findings: Iterable[Finding]) -> Iterable[types.CodeAction]:
    """The quick fixes of findings, with their safety."""
    for finding in findings:
        if finding.fix:
            edits = [types.TextEdit(read.range(edit), edit.content) for edit in finding.fix.edits]
            yield types.CodeAction(
                f"{finding.mistake.code}: {finding.fix.message}{'' if finding.fix.safe else ' (unsafe)'}",
                kind=types.CodeActionKind.QuickFix,
                diagnostics=[read.diagnostic(finding)],
                is_preferred=finding.fix.safe,
                edit=types.WorkspaceEdit({uri: edits}),
            )
