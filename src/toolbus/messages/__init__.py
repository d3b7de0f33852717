"""The provider-neutral conversation, and its plain wire forms.

The data model is in `_model`; `_openai`, `_responses`, `_anthropic` and `_ollama` turn a message list into the
vendor's plain dictionaries and back. They import no SDK: an adapter under `toolbus.providers` does that.
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
    user_text,
)
from ._ollama import from_ollama, to_ollama
from ._openai import from_openai, to_openai
from ._responses import from_openai_responses, to_openai_responses

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
    "from_anthropic",
    "from_ollama",
    "from_openai",
    "from_openai_responses",
    "to_anthropic",
    "to_ollama",
    "to_openai",
    "to_openai_responses",
    "user_text",
    "without_images",
]
