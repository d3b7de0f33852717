"""How long to wait before something that failed is tried again. Pure: what looks like chance comes from a seed."""

from __future__ import annotations

from zlib import crc32

__all__ = ["backoff_seconds"]

_FIRST_SECONDS = 0.5  # as the OpenAI SDK: its retries begin at 0.5 s and stay under 8 s
_MOST_SECONDS = 8.0


def backoff_seconds(attempts: int, seed: str) -> float:
    """Seconds to wait after `attempts` failures (at least 1): doubling, and between half and all of that.

    The share differs by `seed`, so that crowds spread; the same seed gives the same wait.
    """
    longest = min(_MOST_SECONDS, _FIRST_SECONDS * 2 ** min(attempts - 1, 10))
    return longest * (0.5 + crc32(seed.encode()) / 2**33)
