"""The address of the Ollama server: OLLAMA_HOST, read as Ollama itself reads it."""

from __future__ import annotations

from urllib.parse import urlsplit

from ...errors import ConfigurationError

__all__ = ["host_url"]

_PORT = 11434
_PORTS = {"http": 80, "https": 443}


def host_url(host: str, *, option: str) -> str:
    """Return the URL of the server. Scheme, port and path may be missing; "all interfaces" means this machine.

    A path of `/v1`, which is the OpenAI-compatible endpoint, is removed. Raises `ConfigurationError`, which names the
    `option` that `host` comes from, and hides a password.
    """
    text = host.strip().strip("\"'")
    given = "://" in text
    try:
        parts = urlsplit(text if given else f"http://{text}")
        name = parts.hostname or "127.0.0.1"
        port = parts.port or (_PORTS.get(parts.scheme) if given else None) or _PORT
        problem = "" if parts.scheme in _PORTS else f"its scheme {parts.scheme!r} is neither http nor https"
    except ValueError as exc:
        problem = str(exc)
        parts, name, port = urlsplit(""), "", 0
    if problem:
        shown = "***@" + text.rpartition("@")[2] if "@" in text else text
        raise ConfigurationError(f"{option} is {shown!r}, which is not a host: {problem}")
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name)  # noqa: S104 -- a server may listen there, and a client cannot connect there
    user = parts.netloc.rpartition("@")[0]
    shown = f"[{name}]" if ":" in name else name
    return f"{parts.scheme}://{user}{'@' if user else ''}{shown}:{port}{parts.path.rstrip('/').removesuffix('/v1')}"
