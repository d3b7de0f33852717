"""The messages of a conversation, independent of any provider, and their conversion to each vendor's wire format.

The data model is in `_model`; `_openai`, `_responses`, `_anthropic`, `_ollama` and `_vercel` convert a message list
to the plain dictionaries of one API or SDK and back. The package knows schemas and errors. It must not know an SDK, a
clock or I/O: the adapters under `toolbus.providers` import the SDKs.

Invariants:

1. A conversion does not change what it is given: the dictionaries are fresh, apart from kept vendor data, which they
   share with the messages. Otherwise sending a conversation could change the conversation that is stored.
2. A conversion checks types only. The rules of a valid transcript (no orphans, no missing results) are in
   `toolbus.core.transcript`; a second copy of these rules would sooner or later differ from the first.
3. A wire id that was sent once stays the same when the transcript grows. Otherwise the provider's prompt cache, which
   matches prefixes, would be missed.
4. Data that only one vendor understands is kept unchanged in `vendor_data`, under the name of the vendor, and only that
   vendor's conversion sends it back. Signatures of reasoning do not survive an edit, and other servers refuse them.

Example:
    from toolbus.messages import (
        AssistantMessage, Message, Part, PromptLike, TextPart, ToolCall, ToolMessage, UserMessage,
        from_ollama, from_openai_responses, size_of, to_anthropic, to_ollama, to_openai_responses, without_images,
    )

    part: Part = TextPart(text="Where is order 7?")
    prompt: PromptLike = UserMessage(content=(part,))  # or only a text
    messages: list[Message] = [
        prompt,
        AssistantMessage(tool_calls=(ToolCall(name="track", arguments='{"order": 7}', call_id="c1"),)),
        ToolMessage(call_id="c1", name="track", content="In Rome."),
    ]
    print(len(from_ollama(to_ollama(messages))), len(from_openai_responses(to_openai_responses(messages))))  # 3 3
    print([each["role"] for each in to_anthropic(messages)["messages"]])  # ['user', 'assistant', 'user']
    print(size_of(messages) > 0, without_images(messages) == messages)  # True True
"""

from ._anthropic import from_anthropic, to_anthropic
from ._images import without_images
from ._model import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    Part,
    PromptLike,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from ._ollama import from_ollama, to_ollama
from ._openai import from_openai, to_openai
from ._responses import from_openai_responses, to_openai_responses
from ._size import size_of
from ._vercel import VercelForm, from_vercel, to_vercel

__all__ = [
    "AssistantMessage",
    "FilePart",
    "ImagePart",
    "Message",
    "Part",
    "PromptLike",
    "SystemMessage",
    "TextPart",
    "ToolCall",
    "ToolMessage",
    "Usage",
    "UserMessage",
    "VercelForm",
    "from_anthropic",
    "from_ollama",
    "from_openai",
    "from_openai_responses",
    "from_vercel",
    "size_of",
    "to_anthropic",
    "to_ollama",
    "to_openai",
    "to_openai_responses",
    "to_vercel",
    "without_images",
]
