"""Command-line options (argparse) and their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from gradcheck_accum.ledger.stated_names import names_of_flags
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol

_PARSERS = frozenset({"ArgumentParser", "ArgParser"})
_GROUPS = frozenset({"add_argument_group", "add_mutually_exclusive_group"})


@dataclass(slots=True, eq=False)
class Parser:
    """An argument parser; ``defaults`` are the whole numbers and strings that its options default to.

    ``names`` are the names that options have by their flags.
    """

    name: str
    defaults: dict[str, int | str] = field(default_factory=dict)
    names: dict[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Options(Symbol):
    """The parsed options: unknown values, except for their defaults."""

    parser: Parser | None = field(default=None, compare=False)

    def member(self, name: str) -> Symbol:
        """One of the options."""
        if self.parser is None:
            return Symbol(f"{self.name}.{name}")
        return Symbol(f"{self.name}.{name}", self.parser.defaults.get(name), self.parser.names.get(name, frozenset()))


def new_parser(path: str) -> Parser | None:
    """The parser that a call of an imported name makes, or None if it makes none."""
    return Parser(f"{path}()") if path.rpartition(".")[2] in _PARSERS else None


def parser_method(run: State, parser: Parser, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What a method of a parser gives."""
    if name in _GROUPS:
        return parser
    if name == "add_argument":
        option = _destination(args, kwargs)
        parser.names[option] = names_of_flags(flag for flag in args if isinstance(flag, str))
        _note(parser, option, kwargs.get("default"))
    elif name == "set_defaults":
        for option, value in kwargs.items():
            _note(parser, option, value)
    elif name in {"parse_args", "parse_known_args"}:
        options = Options(f"{parser.name}.{name}()", parser=replace(parser, defaults=_left(parser, args)))
        return options if name == "parse_args" else (options, Symbol())
    return Symbol()


def _destination(args: list[Any], kwargs: dict[str, Any]) -> str:
    """The name under which an option is found: as argparse itself makes it of its flags."""
    given = kwargs.get("dest")
    if isinstance(given, str):
        return given
    flags = [flag for flag in args if isinstance(flag, str)]
    named = [flag for flag in flags if flag.startswith("--")] or flags
    return named[0].lstrip("-").replace("-", "_") if named else ""


def _note(parser: Parser, option: str, value: Any) -> None:
    if isinstance(value, Num) and isinstance(value.value, int):
        parser.defaults[option] = value.value
    elif isinstance(value, str):
        parser.defaults[option] = value
    else:
        parser.defaults.pop(option, None)


def _left(parser: Parser, args: list[Any]) -> dict[str, int | str]:
    """The defaults of the options that are not among the arguments that the source itself gives."""
    words = args[0] if args and isinstance(args[0], list) else []
    given = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in words if isinstance(word, str)}
    return {option: value for option, value in parser.defaults.items() if option not in given}
