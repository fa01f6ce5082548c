"""The results of `verify` under their public name: see `gradcheck_accum.results.verdict`."""

from __future__ import annotations

from gradcheck_accum.results.verdict import Accepted, ReferenceReport, Verdict, VerifyResult, WindowReport

__all__ = ["Accepted", "ReferenceReport", "Verdict", "VerifyResult", "WindowReport"]
