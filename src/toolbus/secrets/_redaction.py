"""The redaction of secrets that nobody has marked, in the arguments of calls and in text. Pure.

A secret is recognised by its name, or by its form. When in doubt a value is hidden, because a sentence for people
remains useful without it. Redaction does not prove that a text has no secret: one that looks like a word, under an
ordinary name, is not found.

The names come from maintained lists: sentry-sdk's `DEFAULT_DENYLIST` (sentry_sdk/scrubber.py), the list
`filter_parameters` that Rails generates (passw, secret, token, _key, crypt, salt, certificate, otp, ssn, cvv, cvc), and
detect-secrets' keyword plugin. They match parts of names, as in Rails; sentry-sdk compares whole names.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, cast

from ..core.plain_text import clip
from ._marks import REFERENCE

MASK = "•••"
"""The text that is shown instead of a secret."""

_MAX_TEXT_CHARS = 1_000  # characters of one argument that are kept
_LOOK_AHEAD_CHARS = 200  # examined after those that are kept, so that a key that is cut in two is recognised
_MAX_VALUES = 1_000  # values of one call; the rest is left out
_MAX_CHARS = 20_000  # characters of all of them, which take up to 15 ms; the rest is left out
_MAX_DEPTH = 12  # levels of nesting; the rest is left out
_PIECE_CHARS = 20_000  # characters that are searched at once, because a search holds the interpreter's lock
_LOOKED_BACK_CHARS = 1_000  # the last characters of a piece, in which its end is looked for
_ENDS = re.compile(r"[^\s:=>]\s{0,9}\n|[.,;] ")

_WORDS = frozenset({
    "auth", "authorization", "bearer", "cookie", "cookies", "cred", "creds", "credential", "credentials", "crypt",
    "csrf", "csrftoken", "cvc", "cvv", "dsn", "jwt", "mfa", "otp", "passcode", "passphrase", "passwd", "password",
    "passwords", "phpsessid", "pin", "privkey", "pwd", "salt", "secret", "secrets", "sessionid", "sig", "signature",
    "ssn", "token", "tokens", "totp", "xsrf",
})  # fmt: skip
_JOINED = (
    "accesskey", "accesstoken", "accountkey", "apikey", "appkey", "authkey", "authorization", "authtoken",
    "bearertoken", "cardnumber", "clientkey", "clientsecret", "connectionstring", "credential", "dbkey",
    "encryptionkey", "licensekey", "masterkey", "passcode", "passphrase", "passwd", "password", "privatekey",
    "refreshtoken", "secretkey", "servicekey", "sessionid", "sessionkey", "sessiontoken", "setcookie", "sharedkey",
    "signingkey", "socialsecurity", "sshkey", "storagekey", "xforwardedfor", "xrealip",
)  # fmt: skip
_WHOLE = frozenset({"pass", "session", "connectsid", "certificate"})  # too common as parts of other names
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NAMED = ("name", "key", "header", "field")  # names in a pair such as {"name": "Authorization", "value": "..."}

_COUNTED = ("budget", "count", "limit")  # after "token", with a number
_NUMBER_OF = (  # after "token": how many there are
    rf"(?:s[\w-]{{0,30}}|[_-]?(?:{'|'.join(_COUNTED)}))[\"']?\s{{0,9}}[:=]\s{{0,9}}[\d.]+(?![^\s\"',;)}}\]])"
)
_SAID = (
    rf"passw(?:or)?d|passphrase|passcode|secret|token(?!{_NUMBER_OF})|api[_-]?key|"
    r"(?:access|private|secret|auth|account)[_-]?key"
)
_PEM = re.compile(r"-----BEGIN [^-]{0,60}-----.*?(?:-----END [^-]{0,60}-----|\Z)", re.DOTALL)
_PATTERNS = (
    REFERENCE,  # a reference, which means nothing to people
    re.compile(r"(?i)\b(bearer\s{1,9})[\w.~+/=-]{8,}"),  # RFC 6750
    re.compile(r"\b([Bb]asic\s{1,9})(?=\S{0,200}[A-Z0-9=])[A-Za-z0-9+/]{8,}={0,2}"),  # RFC 7617
    re.compile(r"(?i)(?<=cookie)[\"']?\s{0,9}[:=].*|(?<=authorization)[\"']?\s{0,9}[:=].*"),
    re.compile(  # the first letters of these words, looked for before the words, save three quarters of the time
        rf"(?i)(?=[acpst])((?:{_SAID}|credentials?|pwd)[\w-]{{0,30}}[\"']?\s{{0,9}}(?:=>|[:=])\s{{0,9}}[\"']?)[^\s\"',;&]+"
    ),
    re.compile(rf"(?i)(?<![\w-])(--?[\w-]{{0,30}}(?:{_SAID})[\w-]{{0,30}}\s{{1,9}})[^\s-]\S*"),  # a command's option
    re.compile(r"(\s-u\s{0,9}[^\s:]{1,60}:)\S+"),  # curl's option for a user and a password
    re.compile(r"(://[^/\s:@]{0,100}:)[^/\s@]+(?=@)"),  # a password in a URL
    re.compile(r"(?<![\w-])eyJ[\w-]{5,}(?:\.[\w-]*){1,4}"),  # a JWT: RFC 7519; its header begins with {"
    re.compile(  # the prefixes that GitHub's secret scanning and gitleaks know
        r"\b(?:[sprk]k[-_]|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA|ASIA|AIza|ya29\.|hf_|npm_|pypi-|SG\.|dop_v1_"
        r"|shp[a-z]{2}_|whsec_)[\w.-]{8,}"
    ),
    re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"),  # a UUID, which some vendors use as keys
)
_RUN = re.compile(r"[A-Za-z0-9+/_=-]{20,}")  # keys of 120 bits and more have at least 20 characters of base64
_MIN_CHANGES = 0.2  # changes per character; random hexadecimal and base64 have about 0.45, words and paths under 0.2
_MIN_ENTROPY = 3.0  # bits per character, with so many changes; detect-secrets' limit for hexadecimal
_HIGH_ENTROPY = 4.5  # bits per character, with fewer changes; detect-secrets' limit for base64
_HEXADECIMAL = re.compile(r"(?=[a-fA-F]*[0-9])(?=[0-9]*[a-fA-F])[0-9a-fA-F]{32,}")  # of 128 bits and more


def is_secret_name(name: str) -> bool:
    """Return whether values under `name` are to be hidden, as with `userPassword`, `API_KEY`, `x-auth-token`, `pin`."""
    return _is_secret_name(name[:200])


@lru_cache(maxsize=1024)  # A model may make names of megabytes, which must not be kept.
def _is_secret_name(name: str) -> bool:
    words = _words_of(name)
    if not _WORDS.isdisjoint(words):
        return True
    joined = "".join(words)
    return joined in _WHOLE or any(part in joined for part in _JOINED)


def _words_of(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name[:200])]


def is_secret(name: str, value: object) -> bool:
    """Return whether `value` is to be hidden because of its name. A number of tokens is not, as `max_tokens=200`."""
    if not is_secret_name(name):
        return False
    if type(value) not in (int, float, type(None)):
        return True
    words = _words_of(name)
    counts = "tokens" in words or ("token" in words and not set(words).isdisjoint(_COUNTED))
    return not counts or is_secret_name(" ".join(each for each in words if each not in ("token", "tokens")))


def masked(text: str) -> str:
    """Return `text` with `MASK` instead of keys, which are recognised by prefix, form, label or randomness.

    Costs some microseconds for each 100 characters: clip long text first, or use a thread. Other threads run meanwhile.
    """
    return "".join(map(_masked, _pieces(_PEM.sub(MASK, text))))


def _pieces(text: str) -> Iterator[str]:
    """Yield the parts of a text. A part ends, where it can, at the end of a line or of a part of a sentence.

    A label and its value, such as "token: ...", are not separated there.
    """
    at = 0
    while (end := at + _PIECE_CHARS) < len(text):
        found = [each.end() for each in _ENDS.finditer(text, end - _LOOKED_BACK_CHARS, end)]
        end = found[-1] if found else text.rfind(" ", end - _LOOKED_BACK_CHARS, end) + 1 or end
        yield text[at:end]
        at = end
    yield text[at:]


def _masked(text: str) -> str:
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\g<1>{MASK}" if pattern.groups else MASK, text)
    return _RUN.sub(lambda found: MASK if _is_random(found[0]) else found[0], text)


def redacted(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a call's arguments that may leave the process, with `MASK` instead of secrets at any depth.

    Texts are cut to 1,000 characters. Left out are values beyond the first 1,000 or 20,000 characters, and those below
    12 levels. Anything that is not a JSON value is hidden as well.
    """
    return cast("dict[str, Any]", _Copy().of(arguments, 0))


class _Copy:
    """One pass over one call's arguments, which counts the values and the characters that it has seen."""

    __slots__ = ("_chars", "_seen")

    def __init__(self) -> None:
        self._chars = self._seen = 0

    def of(self, value: Any, depth: int) -> Any:
        self._seen += 1
        if isinstance(value, str):
            looked_at = value[: _MAX_TEXT_CHARS + _LOOK_AHEAD_CHARS]
            self._chars += len(looked_at)
            return clip(masked(looked_at), _MAX_TEXT_CHARS)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, Mapping):
            return self._of_object(cast("Mapping[Any, Any]", value), depth + 1)
        if isinstance(value, (list, tuple)):
            return self._of_list(cast("list[Any]", value), depth + 1)
        return MASK

    def _of_object(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        is_pair = any(is_secret_name(said) for each in _NAMED if isinstance(said := value.get(each), str))
        copy: dict[str, Any] = {}
        for key, each in value.items():
            if self._is_enough(depth):
                break
            looked_at = str(key)[:200]
            self._chars += len(looked_at)
            name = clip(masked(looked_at), 100)
            hidden = is_secret(str(key), each) or (is_pair and key not in _NAMED)
            copy[name] = MASK if hidden else self.of(each, depth)
        return copy

    def _of_list(self, value: list[Any], depth: int) -> list[Any]:
        copy: list[Any] = []
        for each in value:
            if self._is_enough(depth):
                break
            copy.append(self.of(each, depth))
        return copy

    def _is_enough(self, depth: int) -> bool:
        return depth > _MAX_DEPTH or self._seen >= _MAX_VALUES or self._chars >= _MAX_CHARS


def _is_random(run: str) -> bool:
    """Return whether a run of letters and digits looks random: its kinds of characters change more than in words.

    A capital before small letters, as in `Title`, does not count as a change, nor do separators. By entropy only, long
    file names would look like keys.
    """
    changes = 0
    for before, after in pairwise(run):
        if before.isalnum() and after.isalnum():
            changes += before.isdigit() != after.isdigit() or (before.islower() and after.isupper())
    size = len(run)
    entropy = -sum(n / size * math.log2(n / size) for n in Counter(run).values())
    needed = _MIN_ENTROPY if changes >= _MIN_CHANGES * size else _HIGH_ENTROPY
    return entropy >= needed or _HEXADECIMAL.fullmatch(run) is not None
