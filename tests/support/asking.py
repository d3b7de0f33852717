"""One request to a model, and everything that can be read about a failure of it."""

from __future__ import annotations

import traceback
from typing import Any

from toolbus.messages import Message, UserMessage
from toolbus.protocols import ModelRequest


def request(*messages: Message, **options: Any) -> ModelRequest:
    return ModelRequest(messages=messages or (UserMessage(content="hi"),), **options)


def everything_about(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
