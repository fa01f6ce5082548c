"""What the tests draw: the same on any machine, whatever ran before, unless somebody explores."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
# make explore, or pytest --hypothesis-profile explore: draws anew. What that finds is pinned.
settings.register_profile("explore", deadline=None, database=None, suppress_health_check=list(HealthCheck))
settings.load_profile("suite")

# Hypothesis draws from the constants in the modules that happen to be loaded too, which the tests before decide.
providers._get_local_constants = lambda: providers._local_constants
