"""A provider without a language model: it searches, reads and quotes with the workspace tools.

The package needs no key and no network, and follows the same protocol as any model: it reads the transcript and the
tools' descriptions, asks for tool calls, reads their results in the next round, and ends with text. It knows messages
and the provider protocol. It must not access files itself, or know the tools other than by their names and JSON.

Invariants:

1. The next step depends only on the transcript; the provider keeps no state. So concurrent requests, replays and
   resumed requests get the same steps.
2. A turn has at most two searches, two reads and the answer, by construction: it always ends.
"""

from ._provider import ExtractiveProvider

__all__ = ["ExtractiveProvider"]
