"""Training scripts as tests: each runs under verify in a process of its own, and fails with the report."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gradcheck_accum.pytest_plugin.failing import AccumFailure
from gradcheck_accum.pytest_plugin.summary import remember


@dataclass(frozen=True)
class Run:
    """A script with its arguments; ``always`` says that it is run whatever else is collected."""

    path: Path
    arguments: tuple[str, ...]
    always: bool

    @property
    def name(self) -> str:
        """The test's name, below that of its file."""
        return f"accum-verify[{shlex.join(self.arguments)}]" if self.arguments else "accum-verify"


class Scripts:
    """The scripts to run: always those of the command line, and those of the settings if they are among the paths.

    Without paths on the command line, all configured scripts are run.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs = list(dict.fromkeys(runs))

    @classmethod
    def of(cls, config: pytest.Config) -> Scripts:
        """The scripts of a pytest run. Raises pytest.UsageError if one is not a file."""
        has_paths = config.args_source is pytest.Config.ArgsSource.ARGS
        here = config.invocation_params.dir
        home = config.inipath.parent if config.inipath is not None else here
        named = [_run(text, here, always=True) for text in config.getoption("accum_verify") or ()]
        settled = [_run(text, home, always=not has_paths) for text in config.getini("accum_verify")]
        known = {(run.path, run.arguments) for run in named}
        return cls([*named, *(run for run in settled if (run.path, run.arguments) not in known)])

    def files(self, path: Path, parent: pytest.Collector) -> list[pytest.Collector]:
        """A collected file, as one of the scripts."""
        return [AccumVerifyFile.from_parent(parent, path=path, runs=runs)] if (runs := self._of(path)) else []

    def missing(self, session: pytest.Session, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """The tests of scripts that were not collected but have to be run."""
        there = {item.run for item in items if isinstance(item, AccumVerifyItem)}
        left = [run for run in self._runs if run.always and run not in there]
        paths = dict.fromkeys(run.path for run in left)
        files = [
            AccumVerifyFile.from_parent(session, path=path, runs=[run for run in left if run.path == path])
            for path in paths
        ]
        return [item for file in files for item in file.collect()]

    def _of(self, path: Path) -> list[Run]:
        return [run for run in self._runs if run.path == path]


def _run(text: str, home: Path, *, always: bool) -> Run:
    try:
        script, *arguments = shlex.split(text)
    except ValueError as error:  # not a string, or an unclosed quote
        raise pytest.UsageError(f"accum-verify: {text!r} names no script ({error})") from None
    path = Path(home, script).resolve()
    if not path.is_file():
        raise pytest.UsageError(f"accum-verify: there is no file {script} in {home}")
    return Run(path, tuple(arguments), always)


class AccumVerifyFile(pytest.File):
    """A script to run under verify, once or with several arguments."""

    def __init__(self, *, runs: Sequence[Run], **others: object) -> None:
        super().__init__(**others)  # type: ignore[arg-type]
        self._runs = runs

    def collect(self) -> Iterable[pytest.Item]:
        for run in self._runs:
            item = AccumVerifyItem.from_parent(self, name=run.name, run=run)
            item.add_marker("accum_verify")
            yield item


class AccumVerifyItem(pytest.Item):
    """Runs a script under verify, using the project's settings; fails unless every step is right."""

    def __init__(self, *, run: Run, **others: object) -> None:
        super().__init__(**others)  # type: ignore[arg-type]
        self.run = run

    def runtest(self) -> None:
        from gradcheck_accum.report.verify_text import verify_text
        from gradcheck_accum.results.acceptance import Acceptance, accepted
        from gradcheck_accum.settings import SettingsError, settings_for
        from gradcheck_accum.verify import verify_script
        from gradcheck_accum.verify.process.parent import Ending

        if importlib.util.find_spec("torch") is None:
            pytest.fail("--accum-verify needs PyTorch 2.6 or later", pytrace=False)
        try:
            settings = settings_for([str(self.path)]).of_verify()
            acceptance = Acceptance(settings)
        except SettingsError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        told = dict(settings.verify.options)
        verbose = bool(told.pop("verbose", False))
        ending = Ending()
        result = accepted(verify_script(str(self.path), self.run.arguments, ending=ending, **told), acceptance)
        if ending.asked:
            raise KeyboardInterrupt
        remember(self.config, result.accepted)
        if result.exit_status:
            raise AccumFailure(verify_text(result, verbose=verbose), result)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name
