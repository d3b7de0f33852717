"""What a server's refusal of a schema leads to: for this schema or for all, for how long, and for which errors."""

from __future__ import annotations

from typing import Any

import pytest

from toolbus.errors import NativeOutputUnsupported, ProviderRejected, ProviderTimeout, ProviderUnavailable
from toolbus.messages import UserMessage
from toolbus.protocols import ModelRequest
from toolbus.providers._shared.native_output import RefusedSchemas


def schema(number: int = 0) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": {}}}


def request(output_schema: dict[str, Any] | None) -> ModelRequest:
    return ModelRequest(messages=[UserMessage(content="hi")], output_schema=output_schema)


def refuse(refused: RefusedSchemas, number: int, text: str = "Invalid schema for response_format") -> None:
    error = ProviderRejected(text, vendor="test", status=400)
    unsupported = refused.classified(request(schema(number)), error)
    assert isinstance(unsupported, NativeOutputUnsupported)
    assert (unsupported.vendor, unsupported.status) == ("test", 400)
    assert text in str(unsupported)
    assert "output_mode='tool'" in str(unsupported)


def test_a_refused_schema_is_not_asked_for_again_and_others_are():
    refused = RefusedSchemas()
    assert refused.remaining(schema(0), "alone") == "alone"
    refuse(refused, 0)
    assert [refused.remaining(schema(number), "alone") for number in (0, 1)] == ["", "alone"]


def test_a_refused_parameter_means_every_schema():
    refused = RefusedSchemas()
    refuse(refused, 0, "this response_format type is unavailable now")
    assert [refused.remaining(schema(number), "with_tools") for number in (0, 1)] == ["", ""]


def test_as_many_refusals_as_the_bound_are_remembered_and_then_the_newest():
    refused = RefusedSchemas()
    for number in range(256):
        refuse(refused, number)
    assert {refused.remaining(schema(number), "alone") for number in range(256)} == {""}
    refuse(refused, 256)
    assert [refused.remaining(schema(number), "alone") for number in (0, 255, 256)] == ["alone", "alone", ""]


@pytest.mark.parametrize(
    ("error", "is_refusal"),
    [
        *((ProviderRejected("no json_schema here", vendor="t", status=each), True) for each in (400, 404, 405, 415, 422)),
        *((ProviderUnavailable("failed to parse grammar", vendor="t", status=each), True) for each in (500, 501)),
        (ProviderUnavailable("t broke its reply off: failed to parse grammar", vendor="t"), True),
        (ProviderUnavailable("t cannot be reached: failed to parse grammar", vendor="t"), False),
        (ProviderRejected("no json_schema here", vendor="t", status=401), False),
        (ProviderUnavailable("no json_schema here", vendor="t", status=503), False),
        (ProviderTimeout("no json_schema here", vendor="t", status=400), False),
        (ProviderRejected("invalid schema for function 'f'", vendor="t", status=400), False),
        (ProviderRejected("output_config.effort is not supported", vendor="t", status=400), False),
        (ProviderRejected("output_config is not supported", vendor="t", status=400), True),
    ],
    ids=str,
)  # fmt: skip
def test_only_an_error_about_the_schema_is_a_refusal(error: Any, is_refusal: bool):
    refused = RefusedSchemas()
    assert refused.classified(request(None), error) is error
    assert isinstance(refused.classified(request(schema()), error), NativeOutputUnsupported) == is_refusal
    assert refused.remaining(schema(), "alone") == ("" if is_refusal else "alone")
