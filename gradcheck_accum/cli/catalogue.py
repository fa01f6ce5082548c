"""``gradcheck-accum explain`` and ``gradcheck-accum rules``: the catalogue of mistakes."""

from __future__ import annotations

import argparse
import sys

from gradcheck_accum import output, streams
from gradcheck_accum.cli.status import OK, PROGRAM
from gradcheck_accum.errors import UsageError
from gradcheck_accum.mistakes import CATALOGUE, rule_names
from gradcheck_accum.spelling import did_you_mean


def explain(options: argparse.Namespace) -> int:
    """Print the page of a mistake."""
    from gradcheck_accum.report.explain_text import explain_text
    from gradcheck_accum.report.wrap import WIDTH
    from gradcheck_accum.rule_pages import find_mistake, read_page

    mistake = find_mistake(options.rule)
    if mistake is None:
        near = did_you_mean(options.rule, rule_names())
        raise UsageError(f"unknown rule '{options.rule}' (see {PROGRAM} rules){near}")
    page = read_page(mistake)
    if page is None:
        raise UsageError(f"{mistake.code} has no page")
    screen = output.Output("text", sys.stdout)
    streams.write(explain_text(page, paint=screen.paint, width=screen.width or WIDTH))
    return OK


def list_rules(options: argparse.Namespace) -> int:
    """List all mistakes."""
    if options.output_format == "json":
        from gradcheck_accum.report.as_json import rules_json

        streams.write(rules_json(CATALOGUE.values()))
    else:
        from gradcheck_accum.report.rules_text import rules_text

        streams.write(rules_text(CATALOGUE.values()))
    return OK
