"""A project's settings: ``[tool.gradcheck-accum]`` in its pyproject.toml, the same for every command.

One file applies to a whole run: the nearest with such a table, upward from the common directory of all paths. The
command line overrides it, setting by setting.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradcheck_accum.mistakes import CATALOGUE, rule_names
from gradcheck_accum.run_options import SETTINGS as RUN_SETTINGS
from gradcheck_accum.run_options import OptionError, refuse_clashes
from gradcheck_accum.sources.pyproject import LARGEST, TABLE, settings_files
from gradcheck_accum.spelling import did_you_mean

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


class SettingsError(Exception):
    """An invalid setting; the message is one line that names it and says why."""


class Patterns:
    """Patterns of paths in the syntax of .gitignore, relative to ``base``; ``key`` names them in errors."""

    def __init__(self, base: Path, lines: Iterable[str], key: str) -> None:
        self.base = base
        self.lines = tuple(lines)
        self.key = key
        self._root = ""
        self._spec: GitIgnoreSpec | None = None

    def match(self, path: str, *, directory: bool = False) -> bool:
        """Whether they match ``path``, which is absolute and without links."""
        if not self.lines:
            return False
        if self._spec is None:
            self._root, self._spec = os.path.realpath(self.base), _compiled(self.lines, self.key)
        if path == self._root:
            return False
        below = path[len(self._root.rstrip(os.sep)) + 1 :] if _is_below(path, self._root) else path.lstrip(os.sep)
        return self._spec.match_file(below + "/" if directory else below)


def _is_below(path: str, root: str) -> bool:
    return path.startswith(root.rstrip(os.sep) + os.sep)


def _compiled(lines: Sequence[str], key: str) -> GitIgnoreSpec:
    # Takes as long as the rest of the start: imported only if there are patterns.
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise SettingsError(f"{key}: {' '.join(str(error).split())}") from None


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """``[tool.gradcheck-accum.verify]``: the options of runs, named as in `gradcheck_accum.verify.verify_script`.

    ``select`` and ``ignore`` override the project's for runs; None if the project's apply to runs too.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    select: frozenset[str] | None = None
    ignore: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What is reported and what is read. ``select`` and ``exclude`` of None stand for all and for the usual ones.

    ``root`` is the directory of the settings' file, or the working directory; with ``force_exclude``, excluded files
    are not read even if they are given by name. ``verify`` holds the settings for runs only.
    """

    root: Path = field(default_factory=Path)
    select: frozenset[str] | None = None
    ignore: frozenset[str] = frozenset()
    exclude: Patterns | None = None
    extend_exclude: tuple[Patterns, ...] = ()
    per_file_ignores: tuple[tuple[Patterns, frozenset[str]], ...] = ()
    baseline: Path | None = None
    force_exclude: bool = False
    verify: VerifySettings = field(default_factory=VerifySettings)

    def of_verify(self) -> Settings:
        """The settings that apply to runs."""
        own = self.verify
        select = self.select if own.select is None else own.select
        return replace(self, select=select, ignore=self.ignore if own.ignore is None else own.ignore)

    def excludes(self, path: str, *, directory: bool = False) -> bool:
        """Whether an exclude pattern of the settings matches ``path``."""
        patterns = (*([self.exclude] if self.exclude else []), *self.extend_exclude)
        return any(pattern.match(os.path.realpath(path), directory=directory) for pattern in patterns)

    def reports(self, code: str, path: str) -> bool:
        """Whether a finding of ``code`` in ``path`` is reported."""
        if (self.select is not None and code not in self.select) or code in self.ignore:
            return False
        ignoring = [patterns for patterns, codes in self.per_file_ignores if code in codes]
        return not ignoring or not any(patterns.match(os.path.realpath(path)) for patterns in ignoring)


def codes(key: str, selectors: Iterable[str]) -> frozenset[str]:
    """The codes selected by codes, names, or prefixes of codes (GA2).

    Raises SettingsError, which names ``key``, if one of them matches none.
    """
    found: set[str] = set()
    for selector in selectors:
        meant = {
            mistake.code
            for mistake in CATALOGUE.values()
            if selector.casefold() == mistake.name or (selector and mistake.code.startswith(selector.upper()))
        }
        if not meant:
            near = did_you_mean(selector, rule_names())
            raise SettingsError(f"{key}: unknown rule '{selector}' (see gradcheck-accum rules){near}")
        found |= meant
    return frozenset(found)


def with_codes(
    settings: Settings,
    *,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
    called: str = "{}",
) -> Settings:
    """The settings with their codes replaced, if others are given; ``called`` names these in errors.

    Raises SettingsError.
    """
    if select is not None:
        settings = replace(settings, select=codes(called.format("select"), _each(select)))
    if ignore is not None:
        settings = replace(settings, ignore=codes(called.format("ignore"), _each(ignore)))
    return settings


def _each(selectors: Iterable[str]) -> list[str]:
    """Every selector; one string may list several."""
    given = [selectors] if isinstance(selectors, str) else selectors
    return [part.strip() for text in given for part in text.split(",")]


def settings_for(paths: Iterable[str]) -> Settings:
    """The settings of the project that ``paths`` belong to. Raises SettingsError."""
    for name, content in settings_files(paths):
        file = Path(name)
        table = _table(file, content)
        if table is not None:
            return _read(table, file)
    return Settings()


def _table(file: Path, content: bytes) -> Any:
    """Our table of a pyproject.toml, or None if it has none."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    if len(content) > LARGEST:
        raise SettingsError(f"{_shown(file)}: larger than {LARGEST // 1024 // 1024} MiB, not read")
    try:
        document = tomllib.loads(content.decode())
    except ValueError as error:
        raise SettingsError(f"{_shown(file)}: not TOML: {error}") from None
    except RecursionError:
        raise SettingsError(f"{_shown(file)}: nested too deeply") from None
    tool = document.get("tool")
    return tool.get(TABLE) if isinstance(tool, dict) else None


def _shown(file: Path) -> str:
    """The file's path as shown to a person: relative to the working directory if it is below that."""
    return os.path.relpath(file) if _is_below(str(file), os.getcwd()) else str(file)


def _read(table: Any, file: Path) -> Settings:
    place = f"{_shown(file)}: [tool.{TABLE}]"
    if not isinstance(table, dict):
        raise SettingsError(f"{place} is not a table")
    root = file.parent
    readers: dict[str, Callable[[str, Any], Any]] = {
        "select": lambda key, value: codes(key, _strings(key, value)),
        "extend-select": lambda key, value: codes(key, _strings(key, value)),
        "ignore": lambda key, value: codes(key, _strings(key, value)),
        "exclude": lambda key, value: Patterns(root, _strings(key, value), key),
        "extend-exclude": lambda key, value: Patterns(root, _strings(key, value), key),
        "per-file-ignores": lambda key, value: _per_file(key, value, root),
        "baseline": lambda key, value: root / _string(key, value),
        "verify": lambda key, value: _of_runs(f"{_shown(file)}: [tool.{TABLE}.verify]", value),
    }
    values = _values(table, readers, place)
    select: frozenset[str] | None = values.get("select")
    extended: frozenset[str] = values.get("extend-select", frozenset())
    return Settings(
        root,
        select if select is None else select | extended,
        values.get("ignore", frozenset()),
        values.get("exclude"),
        (values["extend-exclude"],) if "extend-exclude" in values else (),
        values.get("per-file-ignores", ()),
        values.get("baseline"),
        verify=values.get("verify", VerifySettings()),
    )


def _values(table: Mapping[str, Any], readers: Mapping[str, Callable[[str, Any], Any]], place: str) -> dict[str, Any]:
    """The values of a table, each read by the reader of its name."""
    unknown = sorted(set(table) - set(readers))
    if unknown:
        near = did_you_mean(unknown[0], readers)
        raise SettingsError(f"{place} has no setting '{unknown[0]}' (known settings: {', '.join(readers)}){near}")
    return {key: readers[key](f"{place} {key}", value) for key, value in table.items()}


def _of_runs(place: str, table: Any) -> VerifySettings:
    if not isinstance(table, Mapping):
        raise SettingsError(f"{place} is not a table")

    def option(key: str, value: Any) -> Any:
        try:
            return RUN_SETTINGS[key.removeprefix(f"{place} ")](value)
        except OptionError as error:
            raise SettingsError(f"{key}: {error}") from None

    readers: dict[str, Callable[[str, Any], Any]] = {
        "select": lambda key, value: codes(key, _strings(key, value)),
        "ignore": lambda key, value: codes(key, _strings(key, value)),
        **dict.fromkeys(RUN_SETTINGS, option),
    }
    values = _values(table, readers, place)
    select, ignore = values.pop("select", None), values.pop("ignore", None)
    try:
        refuse_clashes(values, str)
    except OptionError as error:
        raise SettingsError(f"{place} {error}") from None
    return VerifySettings({key.replace("-", "_"): value for key, value in values.items()}, select, ignore)


def _strings(key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise SettingsError(f"{key}: must be a list of strings")
    return value


def _string(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{key}: must be a path")
    return value


def _per_file(key: str, value: Any, root: Path) -> tuple[tuple[Patterns, frozenset[str]], ...]:
    if not isinstance(value, Mapping):
        raise SettingsError(f'{key}: must be a table of pattern = ["CODE"]')
    return tuple(
        (Patterns(root, [pattern], key), codes(key, _strings(f"{key} '{pattern}'", listed)))
        for pattern, listed in value.items()
    )
