"""Secrets: values that handlers get, and that events, logs, the journal and the model never see.

The values of marked fields of a JSON schema (`writeOnly`, or the format `password`) are secret, and the values that an
application names. A reference such as `secret:0123456789abcdef` replaces each of them, except in a handler's arguments
and in the structured output. The package also hides what only looks like a secret (`redacted`, `masked`), for people.

Knows JSON schemas, events, messages and a turn's state. Must not know the bus, sessions, dispatchers or toolsets.

Invariants:

1. Values are kept in the memory of one process, in the vault of one conversation, and nowhere else. If they were
   written to a store, they would outlive the request, and everybody who reads a backup would have them.
2. A reference reveals nothing about its value: it is a digest under a random key of the vault, or it is made of the
   conversation's id and a name that the application gave. A short password could be guessed from a plain digest.
3. A fact is masked before it is written or published, the same object in both cases, and events of other parts are
   masked in the request's mailbox. If they were masked later, a listener or the journal would still have the value.
4. A reference is replaced by its value only in marked fields. Otherwise a model could send any secret with any tool.
5. A value without secrets is returned as the same object. Callers compare by identity to find out whether something was
   hidden.
6. When in doubt, a value is hidden: in arguments that cannot be read, in schemas and values that are too costly to
   search (both may be untrusted, so the search is bounded in time), and in pieces of a reply that may be the beginning
   of a secret, which are held back. Otherwise an unusual form would be a way around the mask.

Example:
    from toolbus import Runtime
    from toolbus.secrets import MASK, NamedSecret, is_secret, is_secret_name, masked, redacted
    from toolbus.testing import ScriptedProvider, text

    print(is_secret_name("api_key"), redacted({"api_key": "abcdef", "order": 7}))  # True {'api_key': '•••', 'order': 7}
    print(is_secret("max_tokens", 200), is_secret("token", "abcdef"))  # False True
    print(masked("Authorization: Bearer abcdefghijklmnop"))  # Authorization•••
    named: list[NamedSecret] = [("token", "a-long-secret")]
    async with Runtime(ScriptedProvider([text("Hello.")])) as runtime:
        result = await runtime.run("Use a-long-secret.", secrets=named)
    print(MASK, "a-long-secret" in result.messages[0].text)  # ••• False
"""

from __future__ import annotations

from ._event_masking import ReplyMask
from ._json_masking import Mask, hide
from ._marks import REFERENCE, Marks, find_marks, replaced
from ._redaction import MASK, is_secret, is_secret_name, masked, redacted
from ._request_secrets import NO_SECRETS, GivenSecrets, RequestSecrets, marked_in, secrets_of
from ._text_mask import MIN_SECRET_CHARS, TextMask
from ._vault import NamedSecret, Vault

__all__ = [
    "MASK",
    "MIN_SECRET_CHARS",
    "NO_SECRETS",
    "REFERENCE",
    "GivenSecrets",
    "Marks",
    "Mask",
    "NamedSecret",
    "ReplyMask",
    "RequestSecrets",
    "TextMask",
    "Vault",
    "find_marks",
    "hide",
    "is_secret",
    "is_secret_name",
    "marked_in",
    "masked",
    "redacted",
    "replaced",
    "secrets_of",
]
