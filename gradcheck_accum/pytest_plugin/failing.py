"""How a failure is shown: only the report, in characters that the terminal supports."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from _pytest.outcomes import Failed

if TYPE_CHECKING:
    from gradcheck_accum.results.comparison import CompareResult
    from gradcheck_accum.results.fuzzing import LoopTrial
    from gradcheck_accum.results.verdict import VerifyResult


class AccumFailure(Failed, AssertionError):
    """A loop is wrong or undecided; ``result`` has the numbers and the causes.

    An AssertionError, like other failing checks, which pytest shows as the report alone.
    """

    __module__ = "builtins"  # like pytest's own: its summary only has room for the name

    def __init__(self, report: str, result: VerifyResult | CompareResult | LoopTrial) -> None:
        super().__init__(writable(report), pytrace=False)
        self.result = result


def writable(report: str) -> str:
    """A report in the characters of pytest's terminal; otherwise pytest would escape its line ends too."""
    encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
    return report.encode(encoding, "backslashreplace").decode(encoding)
