"""The results of `compare` under their public name: see `gradcheck_accum.results.comparison`."""

from __future__ import annotations

from gradcheck_accum.results.comparison import Compared, CompareResult, Configuration, Difference

__all__ = ["CompareResult", "Compared", "Configuration", "Difference"]
