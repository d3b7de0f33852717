"""Each vendor of the table by its name: the right URL, key and options, and what is said where one of them is missing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

from toolbus.errors import ConfigurationError, ProviderRejected
from toolbus.messages import AssistantMessage, ImagePart, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from toolbus.protocols import Delta, ModelReply, ModelRequest, ModelSettings
from toolbus.providers import NAMED, VENDORS, OpenAIProvider, Vendor, resolve
from toolbus.providers.openai._chat_request import request_body
from toolbus.testing import WireServer, text
from toolbus.testing.wire import Answer, HttpRequest, LoopbackServer

PAGE = Path(__file__).parents[2] / "docs/reference/providers.md"
COMPATIBLE = [name for name, vendor in VENDORS.items() if vendor.adapter == "openai"]
REMOTE = [name for name, vendor in VENDORS.items() if vendor.needs_key]
LOCAL = [name for name, vendor in VENDORS.items() if not vendor.needs_key]
PATHS = {"openai": "/chat/completions", "anthropic": "/v1/messages", "ollama": "/api/chat"}
KEY = "key-of-the-vendor"


class Refusing(LoopbackServer):
    """A server that records each request, and refuses its key."""

    def __init__(self) -> None:
        super().__init__(self._refuse)
        self.requests: list[HttpRequest] = []

    def _refuse(self, request: HttpRequest) -> Answer:
        self.requests.append(request)
        body = json.dumps({"error": {"message": "no such key"}}).encode()
        return Answer(status=401, headers={"Content-Type": "application/json"}, frames=(body,), streamed=False)


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    with Refusing() as server:
        yield server


@pytest.fixture
def stub() -> Iterator[WireServer]:
    with WireServer([text("Sunny.")] * 2, dialect="openai") as server:
        yield server


def ignore(_: Delta) -> None:
    pass


async def ask(provider: Any, *messages: Message, **settings: Any) -> ModelReply:
    given = ModelRequest(messages=messages or (UserMessage(content="hi"),), settings=ModelSettings(**settings))
    try:
        with anyio.fail_after(30):
            return await provider.respond(given, ignore)
    finally:
        await provider.aclose()


def set_up(monkeypatch: pytest.MonkeyPatch, vendor: Vendor, *, key: bool = True) -> None:
    """Set the variables without which the vendor cannot be named."""
    if key:
        monkeypatch.setenv(vendor.key_variable, KEY)
    if not vendor.url:
        monkeypatch.setenv(vendor.url_variable, "https://mine.openai.azure.com/")


# ----------------------------------------------------------------------------------------------------- by name


@pytest.mark.parametrize("name", VENDORS)
def test_a_vendors_name_gives_its_adapter_at_its_url(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor = VENDORS[name]
    set_up(monkeypatch, vendor, key=vendor.needs_key)
    provider: Any = resolve(f"{name}:some/model:8b")
    assert (provider.vendor, provider.model) == (name, "some/model:8b")
    assert type(provider).__name__.lower() == f"{vendor.adapter}provider"
    url = vendor.url or "https://mine.openai.azure.com/openai/v1"
    assert repr(provider).endswith(f"{'host' if vendor.adapter == 'ollama' else 'base_url'}={url!r})")


@pytest.mark.parametrize("name", VENDORS)
async def test_a_vendor_gets_its_own_key_and_no_other_one(
    name: str, monkeypatch: pytest.MonkeyPatch, refusing: Refusing
) -> None:
    vendor = VENDORS[name]
    for each in VENDORS.values():
        monkeypatch.setenv(each.key_variable, "key-of-somebody-else")
    monkeypatch.setenv(vendor.key_variable, KEY)
    path = urlsplit(vendor.url).path
    monkeypatch.setenv(vendor.url_variable, refusing.origin + path)
    with pytest.raises(ProviderRejected, match=re.escape(f"check the key (api_key=, or {vendor.key_variable})")):
        await ask(resolve(f"{name}:m"))
    [sent] = refusing.requests
    assert sent.path == path + vendor.url_path + PATHS[vendor.adapter]
    assert (sent.headers.get("authorization") or f"Bearer {sent.headers['x-api-key']}") == f"Bearer {KEY}"
    assert "somebody-else" not in str(sent.headers)


@pytest.mark.parametrize("name", REMOTE)
def test_a_missing_key_names_the_variable_to_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(monkeypatch, VENDORS[name], key=False)
    if name != "openai":
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    with pytest.raises(
        ConfigurationError, match=f"no API key for {VENDORS[name].title}: set {VENDORS[name].key_variable}"
    ):
        resolve(f"{name}:m")


@pytest.mark.parametrize("name", [name for name in LOCAL if VENDORS[name].adapter == "openai"])
async def test_a_local_server_needs_no_key_and_gets_none(
    name: str, monkeypatch: pytest.MonkeyPatch, stub: WireServer
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://nowhere.invalid/v1")
    monkeypatch.setenv(VENDORS[name].url_variable, stub.base_url)
    reply = await ask(resolve(f"{name}:m"))
    assert (reply.message.text, reply.vendor) == ("Sunny.", name)
    assert stub.requests[0].headers["authorization"] == "Bearer none"


@pytest.mark.parametrize(
    "endpoint",
    ["https://r.openai.azure.com", "https://r.openai.azure.com/", "https://r.openai.azure.com/openai/v1/"],
)
def test_azure_is_at_the_endpoint_of_the_customer(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    with pytest.raises(ConfigurationError, match="there is no URL for Azure OpenAI: set AZURE_OPENAI_ENDPOINT"):
        resolve("azure:my-deployment")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", endpoint)
    assert "base_url='https://r.openai.azure.com/openai/v1'" in repr(resolve("azure:my-deployment"))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gorq:llama", "groq:llama"),
        ("Mistral:large", "mistral:large"),
        ("llama.cpp:qwen3", "llamacpp:qwen3"),
        ("lm-studio:qwen3", "lmstudio:qwen3"),
        ("grok:grok-4", "xai:grok-4"),
        ("claude:haiku", "anthropic:haiku"),
        ("google:flash", "gemini:flash"),
        ("OpenAI-Responses", "openai-responses:MODEL"),
    ],
)
def test_an_unknown_name_comes_with_the_one_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"there is no provider {name!r} (did you mean '{meant}'?)")):
        resolve(name)


def test_an_unknown_name_like_no_other_comes_without_a_guess() -> None:
    with pytest.raises(ConfigurationError, match="there is no provider 'nonsense:x': pass 'openai:MODEL'"):
        resolve("nonsense:x")


# ----------------------------------------------------------------------------------------------------- options

CALLS = AssistantMessage(reasoning="hm", tool_calls=(ToolCall(name="f", call_id="call_1", provider_call_id="call_1"),))
STOPPED = (
    SystemMessage(text="Be brief."),
    UserMessage(content="a"),
    CALLS,
    ToolMessage(call_id="call_1", name="f", content="1"),
    SystemMessage(text="The user came back."),
    UserMessage(content="b"),
)


async def body_of(name: str, monkeypatch: pytest.MonkeyPatch, stub: WireServer, **options: Any) -> Any:
    set_up(monkeypatch, VENDORS[name])
    await ask(OpenAIProvider("m", vendor=name, base_url=stub.base_url, **options), *STOPPED, max_output_tokens=7)
    return stub.requests[-1].body


@pytest.mark.parametrize("name", COMPATIBLE)
async def test_a_vendors_options_are_those_of_the_table(
    name: str, monkeypatch: pytest.MonkeyPatch, stub: WireServer
) -> None:
    options = VENDORS[name].options
    body = await body_of(name, monkeypatch, stub)
    assert ("stream_options" in body) is options.get("include_usage", True)
    assert ("max_tokens" in body) is options.get("compatible", True)
    field = options.get("reasoning_field")
    assert {"reasoning", "reasoning_content"} & set(body["messages"][2]) == ({field} if field else set())


async def test_an_option_that_is_given_comes_before_the_vendors(
    monkeypatch: pytest.MonkeyPatch, stub: WireServer
) -> None:
    given = {"include_usage": True, "mistral_checks": False}
    body = await body_of("mistral", monkeypatch, stub, **given)
    assert body["stream_options"] == {"include_usage": True}
    assert body["messages"][2]["tool_calls"][0]["id"] == "call_1"
    assert "reasoning_content" not in (await body_of("deepseek", monkeypatch, stub, reasoning_field=""))["messages"][2]


async def test_a_turn_that_was_stopped_after_its_results_continues_at_mistral(
    monkeypatch: pytest.MonkeyPatch, stub: WireServer
) -> None:
    messages = (await body_of("mistral", monkeypatch, stub))["messages"]
    assert [each["role"] for each in messages] == ["system", "user", "assistant", "tool", "assistant", "user"]
    [call] = messages[2]["tool_calls"]
    assert re.fullmatch("[a-zA-Z0-9]{9}", call["id"])
    assert messages[3]["tool_call_id"] == call["id"]
    assert messages[5]["content"] == "<system>\nThe user came back.\n</system>\n\nb"


@pytest.mark.parametrize("name", COMPATIBLE)
async def test_a_compatible_server_gets_one_system_message_and_no_neighbours_of_one_role(
    name: str, monkeypatch: pytest.MonkeyPatch, stub: WireServer
) -> None:
    """The templates of Qwen, Gemma and Mistral refuse the others, and with them every later turn."""
    if not VENDORS[name].options.get("compatible", True):
        return
    set_up(monkeypatch, VENDORS[name])
    picture = ImagePart(url="data:image/png;base64,iVBORw0KGgo=")
    said = [
        SystemMessage(text="Be brief."),
        SystemMessage(text=""),
        SystemMessage(text="Say no names."),
        UserMessage(content="a"),
        UserMessage(content=""),
        UserMessage(content=(picture,)),
        UserMessage(content=""),
        AssistantMessage(text="A picture."),
        SystemMessage(text="One turn left out."),
        UserMessage(content="b"),
        UserMessage(content="c"),
    ]
    await ask(OpenAIProvider("m", vendor=name, base_url=stub.base_url), *said)
    sent = [(each["role"], each["content"]) for each in stub.requests[-1].body["messages"]]
    assert sent == [
        ("system", "Be brief.\n\nSay no names."),
        ("user", [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": picture.url}}]),
        ("assistant", "A picture."),
        ("user", "<system>\nOne turn left out.\n</system>\n\nb\n\nc"),
    ]


# --------------------------------------------------------------------------------------- replies of other models

STUB_SIGNATURE = {"google": {"thought_signature": "skip_thought_signature_validator"}}


@pytest.mark.parametrize(
    ("model", "given", "sent"),
    [
        ("gemini-3-pro", None, [STUB_SIGNATURE, None]),
        ("gemini-3-pro", [{"extra_content": {"google": {"thought_signature": "own"}}}, None], [..., None]),
        ("gemini-2.5-pro", None, [None, None]),
    ],
)
def test_gemini_gets_calls_of_other_models_with_the_signature_that_it_accepts_for_them(
    model: str, given: Any, sent: list[Any]
) -> None:
    calls = tuple(ToolCall(name="f", call_id=each) for each in "ab")
    data = {"gemini": {"tool_calls": given}} if given else None
    results = [ToolMessage(call_id=each, name="f", content="1") for each in "ab"]
    history = [UserMessage(content="a"), AssistantMessage(tool_calls=calls, vendor_data=data), *results]
    body = request_body(model, ModelRequest(messages=history), vendor="gemini", compatible=True)
    found = [each.get("extra_content") for each in body["messages"][1]["tool_calls"]]
    own = {"google": {"thought_signature": "own"}}
    assert found == [own if each is ... else each for each in sent]


def test_deepseek_gets_every_reply_with_reasoning() -> None:
    history = [UserMessage(content="a"), AssistantMessage(text="b", reasoning="hm"), UserMessage(content="c")]
    history += [AssistantMessage(text="d"), UserMessage(content="e")]
    options = VENDORS["deepseek"].options
    body = request_body("m", ModelRequest(messages=history), vendor="deepseek", compatible=True, **options)
    assert [each.get("reasoning_content") for each in body["messages"]] == [None, "hm", None, " ", None]


# ----------------------------------------------------------------------------------------------------- the page


def test_the_table_on_the_page_is_made_of_the_data() -> None:
    heading, rule, *rows = re.findall(r"^\|.*\|$", PAGE.read_text().partition("<!-- vendors -->")[2], re.MULTILINE)
    assert rows[: len(VENDORS)] == [row(name, vendor) for name, vendor in VENDORS.items()]
    assert heading.count("|") == rule.count("|") == row("openai", VENDORS["openai"]).count("|")


def row(name: str, vendor: Vendor) -> str:
    url = f"`{vendor.url}`" if vendor.url else f"the endpoint, and `{vendor.url_path}`"
    key = f"`{vendor.key_variable}`{'' if vendor.needs_key else ', if the server asks for one'}"
    options = ", ".join(f"`{option}={value!r}`" for option, value in vendor.options.items())
    remarks = "; ".join(filter(None, [options, vendor.remarks])) or "-"
    cells = (f"`{name}:MODEL`", url, f"`{vendor.url_variable}`", key, remarks, f"[{vendor.title}]({vendor.source})")
    return f"| {' | '.join([*cells, vendor.tried])} |"


def test_every_vendor_can_be_named() -> None:
    assert set(VENDORS) | {"openai-responses"} == set(NAMED)
