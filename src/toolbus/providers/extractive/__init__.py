"""A provider without a language model: it searches, reads and quotes with the workspace tools.

It needs no key and no network, and plays by the rules of any model: it sees the transcript and the tools' descriptions,
asks for calls, reads their results in the next round, and ends with text. It touches no file itself.
"""

from ._provider import ExtractiveProvider

__all__ = ["ExtractiveProvider"]
