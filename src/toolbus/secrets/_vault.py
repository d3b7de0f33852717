"""The vault: a conversation's secrets in this process's memory, and the references that stand for them elsewhere.

It knows how values are found in text (`_text_mask`), and no events, tools or sessions.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, TypeAlias

import orjson
from pydantic import SecretStr

from ..tool_results import clean
from ._marks import REFERENCE
from ._redaction import MASK
from ._text_mask import TextMask, masked_content, masked_json

NamedSecret: TypeAlias = str | SecretStr | tuple[str, str | SecretStr]
"""A value that the application gives so that it is hidden everywhere; or a pair of a name and the value.

A value with a name has the same reference in its conversation in every process.
"""

_MAX_VALUES = 1_000
_MAX_CHARS = 1_000_000  # characters of all values


class Vault:
    """The secrets of one conversation, with its sub-requests. Not thread-safe, except for reading.

    A value has one reference, `secret:` and 16 hexadecimal digits, for as long as the vault lives: a keyed digest
    (HMAC-SHA-256, cut to 64 bits) with a key of the vault's own, so that it reveals nothing about the value. At most
    1,000 values or a million characters are kept, in addition to those that the application names. The value that was
    unused for longest is dropped first; its reference then has no value, and the value is no longer found in text.

    The reference of a value with a name is made only of `conversation_id` and the name, so that it reveals nothing
    about the value either. It is the same in every process, and stands for the value that has the name now.
    """

    __slots__ = ("__weakref__", "_chars", "_conversation_id", "_fixed", "_kept", "_key", "_named", "given", "mask")

    def __init__(self, named: Iterable[NamedSecret] = (), conversation_id: str = "") -> None:
        self._key = os.urandom(32)
        self._conversation_id = conversation_id
        self._named: dict[str, str] = {}
        self._fixed: dict[str, str] = {}  # the references that are not digests with our key, by their values
        self._kept: OrderedDict[str, str | float] = OrderedDict()
        self._chars = 0
        self.mask = TextMask()
        self.given = False  # whether a reference has left the vault
        self.name(named)

    def __bool__(self) -> bool:
        """Return whether there is anything to hide."""
        return bool(self._kept) or bool(self._named)

    def __repr__(self) -> str:
        return f"<Vault of {len(self._kept) + len(self._named)}>"

    def name(self, values: Iterable[NamedSecret]) -> None:
        """Hide these values as well, for as long as the vault lives."""
        for each in values:
            name, given = each if isinstance(each, tuple) else ("", each)
            value = clean(given.get_secret_value() if isinstance(given, SecretStr) else given)
            self._name(value, self._lasting(name) if name else None)

    def _name(self, value: str, fixed: str | None) -> None:
        if fixed is not None:
            self._fixed.pop(value, None)
            self._fixed[value] = fixed  # It is the last one now: of the values of a name, the newest counts.
        reference = self._reference(value)
        if self._named.get(reference) != value:
            self._named[reference] = value
            self.mask.add(value, reference)

    def take_names(self, other: Vault) -> None:
        """Hide the values that the application has given to `other` as well."""
        for value, reference in other._fixed.items():
            self._name(value, reference)
        for value in other._named.values():
            if value not in other._fixed:
                self._name(value, None)

    def recognise(self, text: str, written: str) -> None:
        """Learn the references in `written`, which is `text` as the vault of an earlier process has hidden it.

        Only values that the application gave are learned, and only if the texts differ in nothing but references.
        """
        shown = self.shown(text)
        if REFERENCE.split(shown) == REFERENCE.split(written):
            for mine, theirs in zip(REFERENCE.findall(shown), REFERENCE.findall(written), strict=True):
                if mine != theirs and (value := self._named.get(mine)) is not None:
                    self._name(value, theirs)

    def hide(self, value: float | str) -> str:
        """Return the reference of `value`, which is kept from now on. A value that is a reference stays as it is."""
        if isinstance(value, str):
            value = clean(value)
            if REFERENCE.fullmatch(value) or value == MASK:  # It is hidden already.
                return value
            # References inside the value, as in "Bearer secret:...", are replaced by their values first.
            value = REFERENCE.sub(lambda found: str(self._get(found[0]) or found[0]), value)
        self.given = True
        reference = self._reference(value)
        if reference in self._named:
            return reference
        if reference not in self._kept:
            self._kept[reference] = value
            self._chars += len(str(value))
            self.mask.add(str(value), reference)
            while len(self._kept) > _MAX_VALUES or (self._chars > _MAX_CHARS and len(self._kept) > 1):
                self._forget_oldest()
        self._kept.move_to_end(reference)
        return reference

    def _forget_oldest(self) -> None:
        reference, value = self._kept.popitem(last=False)
        self._chars -= len(str(value))
        self.mask.discard(reference)

    def value_of(self, reference: str) -> float | str | None:
        """Return the value of a reference, or None if it is not known (any more)."""
        value = self._get(reference)
        if reference in self._kept:
            self._kept.move_to_end(reference)
        return value

    def _get(self, reference: str) -> float | str | None:
        named = self._named.get(reference)
        return self._kept.get(reference) if named is None else named

    def shown(self, text: str) -> str:
        """Return `text` without secrets; itself if it has none. JSON stays JSON."""
        masked = masked_content(text, self.mask)
        self.given = self.given or masked is not text
        return masked

    def shown_json(self, value: Any) -> Any:
        """Return a JSON value without secrets, at any depth; itself if it has none."""
        masked = masked_json(value, self.mask)
        self.given = self.given or masked is not value
        return masked

    def digest(self, value: bytes) -> bytes:
        """Return a digest of `value` under the vault's key, which no other vault returns."""
        return hmac.digest(self._key, value, hashlib.sha256)

    def _lasting(self, name: str) -> str:
        of = b"toolbus secret " + orjson.dumps([self._conversation_id, clean(name)])
        return f"secret:{hashlib.sha256(of).hexdigest()[:16]}"

    def _reference(self, value: float | str) -> str:
        if isinstance(value, str) and value in self._fixed:
            return self._fixed[value]
        kind = b"s" if isinstance(value, str) else b"n"
        return f"secret:{self.digest(kind + str(value).encode()).hex()[:16]}"
