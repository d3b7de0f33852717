"""The environment of provider tests, without the variables that a developer's machine happens to have."""

from __future__ import annotations

import pytest

from toolbus.providers import VENDORS

VARIABLES = (
    *(name for vendor in VENDORS.values() for name in (vendor.key_variable, vendor.url_variable)),
    "OPENAI_ORG_ID",
    "OPENAI_PROJECT_ID",
    "OPENAI_ADMIN_KEY",
    "OPENAI_CUSTOM_HEADERS",
    "OPENAI_LOG",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_CUSTOM_HEADERS",
    "ANTHROPIC_LOG",
    "TOOLBUS_PROVIDER",
    "TOOLBUS_MODEL",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
