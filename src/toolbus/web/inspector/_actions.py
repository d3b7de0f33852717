"""The commands of the page: approve, deny, cancel, steer, answer a call, and record. Knows sources, and no HTTP."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import anyio.to_thread

from ...errors import ConfigurationError
from ...events import ApprovalRequested, ToolCallRequested
from ...handles import CommandStatus
from ...testing.recording import RecordingError, ReplayDifference, recording_of, replay
from ._shown import restored
from ._sources import Followed, Source

_MAX_CHARS = 100_000
_MAX_EXPORTED_BYTES = 16 * 2**20
_MAX_REPLAYED_FACTS = 2_000

Body: TypeAlias = Mapping[str, Any]
_Action: TypeAlias = Callable[[Source, Followed, Body, str], Awaitable[CommandStatus]]

_SENTENCES: Mapping[CommandStatus, str] = {
    "done": "Done.",
    "ended": "This has ended, or was decided, in the meantime.",
    "queued": "Stored. It takes effect when a process takes the request over.",
    "unknown": "There is no such request any more.",
}


class Refused(Exception):
    """A command that cannot be given, with a sentence for the person who gave it."""


async def act(source: Source, request_id: str, name: str, body: Body, by: str) -> dict[str, str]:
    """Perform an action of `ACTIONS`, and return the answer with a sentence for people.

    Raises `Refused`, and the errors of handles.
    """
    if not source.can_act:
        raise Refused("A recording takes no commands, because its requests have happened.")
    followed = await source.follow(request_id)
    await followed.update()
    answer = await ACTIONS[name](source, followed, body, by)
    return {"status": answer, "sentence": _SENTENCES[answer]}


async def _cancel(source: Source, followed: Followed, body: Body, _by: str) -> CommandStatus:
    return await source.handle(followed.fold.request_id).cancel(_text(body, "reason"))


async def _steer(source: Source, followed: Followed, body: Body, _by: str) -> CommandStatus:
    text = _text(body, "text").strip()
    if not text:
        raise Refused("Write what the model should read.")
    return await source.handle(followed.fold.request_id).steer(text)


async def _approve(source: Source, followed: Followed, body: Body, by: str) -> CommandStatus:
    question = _question(followed, body)
    arguments = body.get("arguments")
    if arguments is not None and not isinstance(arguments, dict):
        raise Refused("Arguments are a JSON object.")
    edited = None if arguments is None else restored(cast("dict[str, Any]", arguments), question.arguments)
    return await source.handle(followed.fold.request_id).approve(
        question,
        arguments=None if edited == question.arguments else edited,
        by=by,
        reason=_text(body, "reason"),
        remember=body.get("remember") is True,
    )


async def _deny(source: Source, followed: Followed, body: Body, by: str) -> CommandStatus:
    question = _question(followed, body)
    return await source.handle(followed.fold.request_id).deny(
        question, by=by, reason=_text(body, "reason"), remember=body.get("remember") is True
    )


async def _answer(source: Source, followed: Followed, body: Body, _by: str) -> CommandStatus:
    call = _call(followed, body)
    text = _text(body, "text")
    event = call.failed(text) if body.get("is_error") is True else call.completed(text)
    return await source.handle(followed.fold.request_id).inject(event)


ACTIONS: Mapping[str, _Action] = {
    "answer": _answer,
    "approve": _approve,
    "cancel": _cancel,
    "deny": _deny,
    "steer": _steer,
}


def _text(body: Body, name: str) -> str:
    given = body.get(name, "")
    if not isinstance(given, str):
        raise Refused(f"{name} is a text.")
    if len(given) > _MAX_CHARS:
        raise Refused(f"{name} has over {_MAX_CHARS:,} characters.")
    return given


def _question(followed: Followed, body: Body) -> ApprovalRequested:
    """Return the open question that was shown. A decision counts only for the definition that a person has seen."""
    key = str(body.get("request_id", "")), str(body.get("call_id", ""))
    question = followed.fold.questions.get(key)
    if question is None or question.definition != body.get("definition"):
        raise Refused("This was decided in the meantime, or the tool has changed. Look at the question again.")
    return question


def _call(followed: Followed, body: Body) -> ToolCallRequested:
    key = str(body.get("request_id", "")), str(body.get("call_id", ""))
    call = followed.fold.calls.get(key)
    if call is None:
        raise Refused("This call has an answer already.")
    return call


async def exported(source: Source, request_id: str) -> dict[str, Any]:
    """Return a recording of a request as a file's text, and the code of a test that replays it.

    It is replayed once before it is given out: `is_verified` says whether that made the same facts, and `note` why not.
    Raises `ToolbusError` with the reason why the request cannot be recorded.
    """
    requests = await source.recorded(request_id)
    # In a thread, since it looks for secrets in all texts.
    file = await anyio.to_thread.run_sync(recording_of, requests)
    if len(file) > _MAX_EXPORTED_BYTES:
        raise ConfigurationError(f"the recording would have over {_MAX_EXPORTED_BYTES:,} bytes")
    has_tools = all(each.agreed.get("tools") for each in requests if any(_is_call(fact) for fact in each.facts))
    facts = sum(len(each.facts) for each in requests)
    note = "" if has_tools else "A store does not have the tools, so the test has to give them."
    if has_tools and facts > _MAX_REPLAYED_FACTS:
        note = f"It has {facts:,} facts, and was not replayed here."
    elif has_tools:
        note = await _difference(file)
    name = _name_of(request_id)
    return {
        "file_name": f"{name}.jsonl",
        "recording": file.decode("utf-8", "replace"),
        "test": _test(name, has_tools=has_tools),
        "is_verified": not note,
        "note": note,
    }


def _is_call(fact: object) -> bool:
    return isinstance(fact, (ToolCallRequested, ApprovalRequested))


async def _difference(file: bytes) -> str:
    """Return why a replay makes other facts; empty if it makes the same."""
    with tempfile.TemporaryDirectory(prefix="toolbus-") as folder:
        path = Path(folder, "recording.jsonl")
        path.write_bytes(file)  # noqa: ASYNC240 -- at most 16 MiB, into a temporary folder
        try:
            await replay(path)
        except ReplayDifference as exc:
            return f"A replay makes another fact at line {exc.line}: {exc.field or exc.got}."
        except RecordingError as exc:
            return f"It cannot be replayed: {exc.problem}."
    return ""


def _name_of(request_id: str) -> str:
    return "request_" + re.sub(r"\W", "_", request_id, flags=re.ASCII)[-12:].lower()


def _test(name: str, *, has_tools: bool) -> str:
    given = "" if has_tools else ", tools=tools"
    imports = "" if has_tools else "\nfrom my_application import tools\n"
    return (
        f"from toolbus.testing import replay\n{imports}\n\nasync def test_{name}() -> None:\n"
        f'    await replay("tests/recordings/{name}.jsonl"{given})\n'
    )
