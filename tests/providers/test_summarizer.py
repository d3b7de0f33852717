"""The request that a summarizer makes, and the summary that comes of the reply."""

from __future__ import annotations

from typing import Any

import pytest

from toolbus.errors import ConfigurationError
from toolbus.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from toolbus.protocols import ModelSettings
from toolbus.providers.summarizer import Summarizer
from toolbus.testing import ScriptedProvider, text

TURNS: list[Message] = [
    UserMessage(content=(TextPart(text="Where is"), ImagePart(url="https://a/b.png"), TextPart(text="this?"))),
    AssistantMessage(text="I look.", tool_calls=(ToolCall(name="find", arguments='{"what":"it"}'),)),
    ToolMessage(call_id="1", name="find", content="in Rome"),
    AssistantMessage(tool_calls=(ToolCall(name="find", arguments="x" * 5_000), ToolCall(name="stop"))),
    ToolMessage(call_id="2", name="find", content="too long", is_error=True),
    AssistantMessage(),
    SystemMessage(text="Be brief."),
]


def model() -> ScriptedProvider:
    return ScriptedProvider([text("They look.", usage=Usage(input_tokens=3))], vendor="stub")


async def test_a_model_reads_the_earlier_summary_and_each_message_as_text() -> None:
    asking = model()
    summary = await Summarizer(max_words=50).summarize("Ada asks.", TURNS, asking)
    assert (summary.text, summary.usage, summary.vendor, summary.model) == (
        "They look.",
        Usage(input_tokens=3),
        "stub",
        "script",
    )
    task, asked = asking.requests[0].messages
    assert isinstance(task, SystemMessage)
    assert "50 words" in task.text
    assert isinstance(asked, UserMessage)
    before, user, called, gave, calls, failed, note = asked.text.split("\n\n")
    assert before == "Summary of what came before:\nAda asks."
    assert user.startswith("User: Where is")
    assert called == 'Assistant: I look.\n(calls find({"what":"it"}))'
    assert (gave, failed, note) == ("find gave: in Rome", "find failed: too long", "Note: Be brief.")
    assert calls.startswith("(calls find(xxx")
    assert calls.endswith(")\n(calls stop({}))")
    assert len(calls) < 1_000


async def test_the_model_is_asked_with_the_summarizers_settings_and_nothing_of_an_earlier_summary() -> None:
    asked, settings = model(), ModelSettings(temperature=0)
    await Summarizer(settings=settings).summarize("", TURNS[:1], asked)
    (request,) = asked.requests
    assert request.settings == settings
    assert "came before" not in str(request.messages[-1])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"provider": "openai:gpt-5-mini"}, r"has no respond.*toolbus.providers.resolve\(name\)"),
        ({"max_words": 0}, "max_words is 0"),
    ],
)
def test_a_summarizer_without_a_model_or_without_words_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Summarizer(**options)


def test_a_summary_may_have_one_word() -> None:
    assert Summarizer(max_words=1).max_words == 1
