"""The pages of the site that are written from something else: the mistakes' pages, and the command line."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator

from gradcheck_accum.cli import command_line
from gradcheck_accum.mistakes import CATALOGUE, Mistake
from gradcheck_accum.rule_pages import page_path, read_page

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def rule_page(mistake: Mistake) -> str:
    """The page of a mistake: as `explain` has it, with the whole examples at its end."""
    page = read_page(mistake)
    assert page is not None, f"{mistake.code} has no page"
    text = f"# {page.title}\n\n{page.lead}\n{page.seen}\n{_ledger(mistake)}"
    text += "\n".join(f"## {heading}\n\n{part}" for heading, part in page.parts().items())
    for kind, called in (("bad", "The wrong loop, as it runs"), ("good", "The right loop, as it runs")):
        code = "".join(f"    {line}\n" for line in ["```python", *page.examples[kind].splitlines(), "```"])
        text += f'\n??? example "{called}"\n\n{code}'
    return text


def _ledger(mistake: Mistake) -> str:
    """The weights of the wrong example's micro-batches, if its page has them."""
    path = page_path(mistake)
    settings = re.search(
        r"^```toml\n(.*?)^```$", path.read_text(encoding="utf-8") if path else "", re.DOTALL | re.MULTILINE
    )
    windows = tomllib.loads(settings[1]).get("weights", []) if settings else []
    lines = (f"window {number}: {', '.join(map(str, weights))}\n" for number, weights in enumerate(windows))
    return f"```ledger\n{''.join(lines)}```\n\n" if windows else ""


def rule_pages() -> dict[str, str]:
    """All of them, by their place on the site."""
    return {f"rules/{code}.md": rule_page(mistake) for code, mistake in CATALOGUE.items() if page_path(mistake)}


def commands() -> str:
    """Every command with its options."""
    parser = command_line()
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    summaries = {action.dest: action.help for action in subparsers._choices_actions}
    return "\n".join(
        f"### {name}\n\n{_sentence(summaries[name])}\n\n```text\n{_usage(command)}\n```\n\n{_options(command)}"
        for name, command in subparsers.choices.items()
    )


def _usage(command: argparse.ArgumentParser) -> str:
    if command.usage:
        return command.usage
    places = " ".join(
        f"[{a.metavar} ...]" if a.nargs == "*" else f"[{a.metavar}]" if a.nargs == "?" else a.metavar
        for a in command._get_positional_actions()
    )
    return f"{command.prog} [options] {places}".strip()


def _options(command: argparse.ArgumentParser) -> str:
    rows = [row for group in command._action_groups for action in group._group_actions if (row := _row(action))]
    return "| option | what it does |\n| --- | --- |\n" + "".join(rows) if rows else ""


def _row(action: argparse.Action) -> str:
    if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
        return ""
    return f"| {', '.join(f'`{name}`' for name in _names(action))} | {_help(action)} |\n"


def _names(action: argparse.Action) -> Iterator[str]:
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    value = " ".join(value) if isinstance(value, tuple) else value
    if not action.option_strings:
        yield value
    for name in action.option_strings:
        # A pipe would end the cell.
        yield (name if action.nargs == 0 else f"{name} {value}").replace("|", "\\|")


def _help(action: argparse.Action) -> str:
    return (action.help or "").replace("%(default)s", str(action.default)).replace("|", "\\|")


def _sentence(text: str | None) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}." if text else ""
