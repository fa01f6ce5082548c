"""What the tests draw: the same on any machine, whatever ran before, unless somebody explores."""

from __future__ import annotations

import contextlib
from importlib import import_module

from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite", deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
# make explore, or pytest --hypothesis-profile explore: draws other examples. What that finds is pinned.
settings.register_profile("explore", deadline=None, database=None, suppress_health_check=list(HealthCheck))
settings.load_profile("suite")

# Hypothesis draws from the constants in the modules that happen to be loaded too, which the tests before decide. Older
# ones (6.100, say) draw from none: what is replaced here is not in them.
with contextlib.suppress(ModuleNotFoundError):
    _providers = import_module("hypothesis.internal.conjecture.providers")
    _providers._get_local_constants = lambda: _providers._local_constants
