"""A pytest plugin (`-p soak.fuzzing`) with the Hypothesis profile "soak": more examples where a test sets no number.

Nothing is reused from earlier runs, so that a seed (`--hypothesis-seed`) gives the same examples each time.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "soak",
    max_examples=1_000,
    derandomize=False,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
