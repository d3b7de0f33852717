"""The wait before a failed operation is tried again. Pure: the jitter is derived from a seed, not from randomness.

Example:
    from toolbus.core.backoff import backoff_seconds

    print(backoff_seconds(1, "r1") == backoff_seconds(1, "r1"))  # True
"""

from __future__ import annotations

from zlib import crc32

__all__ = ["backoff_seconds"]

_FIRST_SECONDS = 0.5  # as in the OpenAI SDK, whose retries begin at 0.5 s and stay under 8 s
_MAX_SECONDS = 8.0


def backoff_seconds(attempts: int, seed: str) -> float:
    """Return the seconds to wait after `attempts` failures (at least 1): between half and all of a doubling maximum.

    The share depends on `seed`, so that many clients do not retry at once; the same seed gives the same wait.
    """
    longest = min(_MAX_SECONDS, _FIRST_SECONDS * 2 ** min(attempts - 1, 10))
    return longest * (0.5 + crc32(seed.encode()) / 2**33)
