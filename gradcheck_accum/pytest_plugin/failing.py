"""How a failure is shown: the report alone, in the characters that there are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from _pytest.outcomes import Failed

if TYPE_CHECKING:
    from gradcheck_accum.results.comparison import CompareResult
    from gradcheck_accum.results.fuzzing import LoopTrial
    from gradcheck_accum.results.verdict import VerifyResult


class AccumFailure(Failed, AssertionError):
    """A loop is wrong, or could not be decided; ``result`` has the numbers and the causes.

    An AssertionError, as other checks that fail, which pytest shows as the report alone.
    """

    __module__ = "builtins"  # as pytest's own: its summary has no room for more than the name

    def __init__(self, report: str, result: VerifyResult | CompareResult | LoopTrial) -> None:
        super().__init__(writable(report), pytrace=False)
        self.result = result


def writable(report: str) -> str:
    """A report in the characters that pytest's terminal has: else pytest escapes its line ends too."""
    encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
    return report.encode(encoding, "backslashreplace").decode(encoding)
