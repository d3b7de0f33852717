"""A plugin of pytest (`-p soak.fuzzing`): Hypothesis's profile "soak", of more examples where a test does not say.

Nothing is taken from earlier runs, so that a seed (`--hypothesis-seed`) gives the same examples each time.
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
