"""The face of `toolbus.secrets`."""

from __future__ import annotations

from ._marks import REFERENCE, SHORTEST, Marks, TextMask, find_marks, replaced
from ._masking import ReplyMask
from ._redaction import MASK, is_secret_name, masked, redacted
from ._request_secrets import Secrecy, SecretKeeper, delivered, marked_in, secrecy_of, vault_of, with_references
from ._vault import NamedSecret, Vault

__all__ = [
    "MASK",
    "REFERENCE",
    "SHORTEST",
    "Marks",
    "NamedSecret",
    "ReplyMask",
    "Secrecy",
    "SecretKeeper",
    "TextMask",
    "Vault",
    "delivered",
    "find_marks",
    "is_secret_name",
    "marked_in",
    "masked",
    "redacted",
    "replaced",
    "secrecy_of",
    "vault_of",
    "with_references",
]
