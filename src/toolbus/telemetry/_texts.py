"""Texts that come from models, servers and tools, made fit for what exports them. Knows nothing of OpenTelemetry."""

from __future__ import annotations

_MAX_CHARS = 1_000
_MAX_LABELS = 1_000
_MAX_LABEL_CHARS = 200
_OTHERS = "(others)"


def clean(text: str, limit: int = _MAX_CHARS) -> str:
    """Return at most `limit` characters of a text, without halves of surrogate pairs.

    An exporter cannot encode such a half, and would drop it together with everything that it sends at the same time.
    """
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text if text.isascii() else text.encode(errors="replace").decode()


class Labels:
    """Gives texts as attributes of metrics: at most 1,000 different ones for each attribute; all others are "(others)".

    A reader of metrics keeps each combination of attributes as long as the process lives. So whoever chooses a text, as
    a server does that makes up the name of its model, must not choose how many there are.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}

    def __call__(self, attribute: str, text: str) -> str:
        """Return the text, cut to 200 characters, or "(others)"."""
        known = self._known.setdefault(attribute, {})
        found = known.get(text)
        if found is None:
            found = clean(text, _MAX_LABEL_CHARS)
            if found != text:
                return self(attribute, found)
            if len(known) >= _MAX_LABELS:
                return _OTHERS
            known[text] = found
        return found

    def if_known(self, attribute: str, text: str) -> str:
        """Return the text if it was an attribute before, otherwise an empty text."""
        return self._known.get(attribute, {}).get(text, "")
