"""The bodies that go over HTTP: the question, and the whole result."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from toolbus.events import Artifact
from toolbus.messages import Message, Usage
from toolbus.request_result import RequestOutcome


def _text_of(error: Exception | None) -> str | None:
    return None if error is None else str(error)


def _not_blank(text: str) -> str:
    if all(unicodedata.category(each) in {"Cc", "Cf", "Zl", "Zp", "Zs"} for each in text):
        raise ValueError("nothing in it can be seen")
    return text


def _without_controls(text: str) -> str:
    if any(unicodedata.category(each) == "Cc" for each in text):
        raise ValueError("it has a control character")
    return text


_Prompt = Annotated[str, Field(min_length=1, max_length=20_000), AfterValidator(_not_blank)]
_ConversationId = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_without_controls)]


class Question(BaseModel):
    """The prompt, and the conversation that it continues; without one it begins a new conversation.

    Anybody who knows a conversation's id can ask about its content. If users must not see one another's conversations,
    put the user's own id in front of it before you pass it to the runtime.
    """

    prompt: _Prompt
    conversation_id: _ConversationId | None = None


class Call(BaseModel):
    """One tool call: a `toolbus.request_result.CallRecord` without the values that exist only in this process."""

    model_config = ConfigDict(from_attributes=True)

    call_id: str
    name: str
    arguments: dict[str, Any] | None
    round: int
    ok: bool
    content: str
    reason: str
    error: str
    duration_seconds: float


class Answer(BaseModel):
    """A `toolbus.RequestResult` as JSON. `messages` are those that this turn added to the conversation.

    A request that was stopped by a limit is an answer too, as `outcome` says, and one that failed has what happened
    until then: see `status_of`. `provider` says what answered: "extractive" is not a language model.
    """

    model_config = ConfigDict(from_attributes=True)

    provider: str = ""
    request_id: str
    conversation_id: str
    outcome: RequestOutcome
    reason: str
    error: Annotated[str | None, BeforeValidator(_text_of)]
    text: str
    tool_calls: list[Call]
    messages: list[Message] = Field(validation_alias="new_messages")
    artifacts: list[Artifact]
    affected: list[str]
    usage: Usage
    rounds: int
    duration_seconds: float
