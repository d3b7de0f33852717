"""The face of `toolbus.secrets`."""

from __future__ import annotations

from ._marks import REFERENCE, SHORTEST, Marks, TextMask, find_marks, replaced
from ._masking import ReplyMask
from ._redaction import MASK, is_secret_name, masked, redacted
from ._request_secrets import NO_SECRETS, RequestSecrets, marked_in, secrets_of
from ._vault import NamedSecret, Vault

__all__ = [
    "MASK",
    "NO_SECRETS",
    "REFERENCE",
    "SHORTEST",
    "Marks",
    "NamedSecret",
    "ReplyMask",
    "RequestSecrets",
    "TextMask",
    "Vault",
    "find_marks",
    "is_secret_name",
    "marked_in",
    "masked",
    "redacted",
    "replaced",
    "secrets_of",
]
