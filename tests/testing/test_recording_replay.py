"""Recordings of real requests are driven again, and each of their facts is compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from recorded_scenes import SCENES, delete_file, get_weather

from toolbus import Interceptor, Limits, Runtime, ToolContext, tool
from toolbus.core.transcript import validate
from toolbus.core.turn import TurnState, apply
from toolbus.durability import limits_in
from toolbus.errors import ConfigurationError
from toolbus.interceptors import Ask
from toolbus.messages import SystemMessage, Usage
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.providers.scripted import ScriptedProvider, calls, text
from toolbus.testing import ReplayDifference, read_recording, replay, virtual_backends
from toolbus.testing.recording import RecordingError, record
from toolbus.testing.recording._agreement import history_in

anyio_backend = virtual_backends()

FOLDER = Path(__file__).parents[1] / "data" / "recordings"
RECORDINGS = sorted(FOLDER.glob("*.jsonl"))
PARALLEL = FOLDER / "parallel_calls_of_which_one_times_out.jsonl"

Lines = list[bytes]

on_one_loop = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
"""For tests that replay a recording once for each of its lines. All other tests of replays run on both event loops."""


def changed(folder: Path, source: Path, change: Callable[[Lines], Lines], *, sealed: bool = False) -> Path:
    """A copy of a recording whose lines were changed; without its digest, so that the replay itself has to see it."""
    lines = source.read_bytes().splitlines()
    if not sealed:
        lines[-1] = b'{"type":"end"}'
    path = folder / "changed.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in change(lines)))
    return path


def lines_of(path: Path) -> Lines:
    return path.read_bytes().splitlines()


def with_fields(line: bytes, **fields: Any) -> bytes:
    return orjson.dumps({**orjson.loads(line), **fields})


def place_of(lines: Lines, kind: str, number: int = 0) -> int:
    return [at for at, line in enumerate(lines) if orjson.loads(line)["type"] == kind][number]


def test_every_scene_has_a_recording():
    assert {each.stem for each in RECORDINGS} == set(SCENES)


@pytest.mark.repeats("recordings of what is recorded and replayed below")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
async def test_journals_of_format_1_go_on_replaying(path: Path):
    with anyio.fail_after(30):
        replayed = await replay(path)
    recording = read_recording(path)
    assert recording.version == 1
    assert replayed.facts == recording.facts > 0
    assert len(replayed.results) == len(recording.requests)
    assert anyio.current_time() == pytest.approx(0, abs=1e-6)  # a replay takes no time, whatever the recording took


@pytest.mark.guarantee("G01")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
async def test_the_facts_alone_give_the_transcript_of_the_replayed_request(path: Path):
    replayed = await replay(path)
    for request, result in zip(read_recording(path).requests, replayed.results, strict=True):
        if result is None:
            continue
        state = TurnState(request.request_id, limits=limits_in(request.agreed), messages=history_in(request.agreed))
        for fact in request.facts:
            apply(state, fact)
        validate(state.messages)
        assert state.messages == result.messages
        assert (state.usage, state.cost) == (result.usage, result.cost)


@pytest.mark.parametrize("name", SCENES)
async def test_what_is_recorded_now_replays_now(name: str, tmp_path: Path):
    path = tmp_path / f"{name}.jsonl"
    await SCENES[name](path)
    replayed = await replay(path)
    assert replayed.facts == read_recording(path).facts
    ours, kept = (
        {orjson.loads(line)["type"] for line in each} for each in (lines_of(path), lines_of(FOLDER / path.name))
    )
    # A sub-request whose time is over as its call's may be left or end itself.
    assert ours - {"released"} == kept - {"released"}


# ------------------------------------------------------------------------------------------------- differences


@pytest.mark.repeats("once for each line")
@on_one_loop
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
async def test_a_line_that_is_dropped_is_missed(path: Path, tmp_path: Path, anyio_backend: object):
    lines = lines_of(path)
    for at, line in enumerate(lines[:-1]):
        given = orjson.loads(line)
        if (
            "request_id" not in given
            or given["type"] in ("changed", "status_changed", "tool_call_started")
            or "delta" in given["type"]
        ):
            continue  # the digest alone misses these

        def without(lines: Lines, at: int = at) -> Lines:
            return lines[:at] + lines[at + 1 :]

        with pytest.raises((ReplayDifference, RecordingError)):
            await replay(changed(tmp_path, path, without))


@pytest.mark.repeats("once for each fact")
@on_one_loop
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
async def test_own_facts_that_are_swapped_are_noticed(path: Path, tmp_path: Path, anyio_backend: object):
    request = read_recording(path).requests[0]
    places = [at for at in range(len(request.facts) - 1) if request.is_own(at) and request.is_own(at + 1)]
    assert places
    for at in places:
        one, other = request.lines[at] - 1, request.lines[at + 1] - 1

        def swapped(lines: Lines, one: int = one, other: int = other) -> Lines:
            lines[one], lines[other] = lines[other], lines[one]
            return lines

        with pytest.raises((ReplayDifference, RecordingError)):
            await replay(changed(tmp_path, path, swapped))


@pytest.mark.parametrize("change", ["drop", "swap", "edit"])
async def test_whatever_else_is_changed_the_last_line_tells(change: str, tmp_path: Path):
    def do(lines: Lines) -> Lines:
        if change == "drop":
            signal = place_of(lines, "status_changed")
            return lines[:signal] + lines[signal + 1 :]
        one = place_of(lines, "tool_call_completed")
        if change == "swap":
            lines[one], lines[one + 1] = lines[one + 1], lines[one]
        else:
            lines[one] = with_fields(lines[one], duration_seconds=9.0)
        return lines

    source = FOLDER / "a_result_that_comes_late.jsonl" if change == "drop" else PARALLEL
    path = changed(tmp_path, source, do, sealed=True)
    last = len(lines_of(path))
    with pytest.raises(RecordingError, match=rf"changed.jsonl:{last}: ") as caught:
        await replay(path)
    assert caught.value.line == last


@pytest.mark.parametrize(
    ("kind", "fields", "field", "line"),
    [
        ("tool_call_requested", {"arguments": {"city": "Lyon"}}, "arguments.city", 7),
        ("tool_call_failed", {"at": 1750000002.5}, "duration_seconds", 12),
        ("round_started", {"message_count": 2}, "message_count", 5),
        ("request_completed", {"text": "Nowhere."}, "text", 15),
    ],
)
async def test_a_changed_field_is_named_with_its_line(
    kind: str, fields: dict[str, Any], field: str, line: int, tmp_path: Path
):
    def edit(lines: Lines) -> Lines:
        at = place_of(lines, kind)
        lines[at] = with_fields(lines[at], **fields)
        return lines

    with pytest.raises(ReplayDifference) as caught:
        await replay(changed(tmp_path, PARALLEL, edit))
    assert (caught.value.field, caught.value.line) == (field, line)


async def test_a_difference_says_what_was_expected_what_came_and_what_was_around_it(tmp_path: Path):
    def edit(lines: Lines) -> Lines:
        at = place_of(lines, "tool_call_requested", 1)
        lines[at] = with_fields(lines[at], arguments={"city": "Lyon"})
        return lines

    with pytest.raises(ReplayDifference) as caught:
        await replay(changed(tmp_path, PARALLEL, edit))
    reported = str(caught.value).splitlines()
    assert reported[0].endswith("changed.jsonl:8: tool_call_requested differs (request para-1, fact 5)")
    assert reported[1:4] == ["  field     arguments.city", "  expected  'Lyon'", "  got       'Oslo'"]
    assert next(line for line in reported if line.startswith(">")).startswith(">     8      0.000s  ToolCallRequested")
    assert "arguments={'city': 'Oslo'}" in reported[-1]
    assert (caught.value.expected, caught.value.got, caught.value.request_id) == ("Lyon", "Oslo", "para-1")


async def test_a_fact_of_another_kind_and_one_too_many_are_reported(tmp_path: Path):
    def reply_without_its_call(lines: Lines) -> Lines:
        return [line for line in lines if b"para-1_0_2" not in line or b"model_responded" in line]

    with pytest.raises(ReplayDifference, match="tool_call_requested instead of tool_call_completed") as caught:
        await replay(changed(tmp_path, PARALLEL, reply_without_its_call))
    assert caught.value.got == "tool_call_requested"


# --------------------------------------------------------------------------------------------- the application


@tool
async def _weather_by_country(country: str) -> str:
    """Current weather in a country."""
    raise AssertionError("no handler runs in a replay")


async def test_the_applications_own_tools_stand_in_the_place_of_the_recorded_ones():
    replayed = await replay(PARALLEL, tools=[get_weather])
    assert replayed.facts == 13


async def test_a_tool_that_has_changed_makes_a_difference_where_its_call_is_refused():
    with pytest.raises(ReplayDifference, match="tool_call_failed instead of tool_call_requested") as caught:
        await replay(PARALLEL, tools=[_weather_by_country])
    assert "There is no tool 'get_weather'" in str(caught.value)


async def test_limits_that_change_nothing_make_no_difference_and_others_do():
    await replay(PARALLEL, limits=Limits(tool_timeout_seconds=2, timeout_seconds=500))
    with pytest.raises(ReplayDifference, match="tool_call_failed instead of tool_call_requested"):
        await replay(PARALLEL, limits=Limits(tool_timeout_seconds=2, max_calls_per_round=2))


async def test_what_the_model_is_asked_can_be_looked_at():
    replayed = await replay(PARALLEL, instructions="Answer at length.")
    first, second = replayed.asked[0]
    assert first.messages[0] == SystemMessage(text="Answer at length.", message_id="para-1_i")
    assert [each.name for each in first.tools] == ["get_weather"]
    assert len(second.messages) == 6


async def test_fields_can_be_ignored_of_all_facts_or_of_one_type(tmp_path: Path):
    def edit(lines: Lines) -> Lines:
        at = place_of(lines, "round_started")
        lines[at] = with_fields(lines[at], message_count=7)
        return lines

    path = changed(tmp_path, PARALLEL, edit)
    await replay(path, ignore="message_count")
    await replay(path, ignore=["round_started.message_count"])
    with pytest.raises(ReplayDifference):
        await replay(path, ignore=["request_started.message_count", "at"])


async def test_a_recording_that_was_read_can_be_replayed_again_and_again():
    recording = read_recording(PARALLEL)
    assert (await replay(recording)).facts == (await replay(recording)).facts


async def test_an_agreement_that_cannot_be_is_refused_with_its_line(tmp_path: Path):
    def edit(lines: Lines) -> Lines:
        lines[1] = with_fields(lines[1], limits={"max_rounds": -1})
        return lines

    with pytest.raises(
        RecordingError, match=r"changed.jsonl:2: the request cannot be started again: max_rounds is -1"
    ) as caught:
        await replay(changed(tmp_path, PARALLEL, edit))
    assert isinstance(caught.value.__cause__, ConfigurationError)


@pytest.mark.parametrize(("kind", "field"), [("request", "limits"), ("request_completed", "output")])
async def test_a_field_of_another_type_is_refused_with_the_line_of_its_request(tmp_path: Path, kind: str, field: str):
    def edit(lines: Lines) -> Lines:
        at = place_of(lines, kind)
        lines[at] = with_fields(lines[at], **{field: "x"})
        return lines

    with pytest.raises(RecordingError, match=r"changed.jsonl:2: the request cannot be started again"):
        await replay(changed(tmp_path, PARALLEL, edit))


async def test_a_question_that_nobody_answers_in_time_is_asked_in_the_replay_too(tmp_path: Path):
    model = ScriptedProvider([calls(("delete_file", {"path": "a"})), text("It stays.")])
    options: Any = {"limits": Limits(approval_timeout_seconds=20), "interceptors": [Interceptor()]}
    async with Runtime(model, tools=[delete_file], on_approval="wait", **options) as runtime:
        with record(tmp_path / "late.jsonl", runtime):
            result = await runtime.run("Delete a.")
    assert result.tool_calls[0].error == "Nobody decided on the call in time (approval_timeout_seconds=20)."
    assert (await replay(tmp_path / "late.jsonl")).results[0] is not None


class Waits(Interceptor):
    """Gives no reply back."""

    edits_replies = False

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
        reply = await ask(request)
        await anyio.sleep_forever()
        return reply


class InAThread(ScriptedProvider):
    """A model whose call cannot be cancelled."""

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        reply = await super().respond(request, emit)
        with anyio.CancelScope(shield=True):
            await anyio.sleep(1)
        return reply


@pytest.mark.parametrize("reply", ["lost", "taken", "taken with calls"])
async def test_a_reply_that_comes_before_its_request_is_cancelled_comes_in_the_replay_too(reply: str, tmp_path: Path):
    used = Usage(input_tokens=20, output_tokens=2)
    made = calls(("get_weather", {"city": "Rome"}), usage=used) if "calls" in reply else text("Yes.", usage=used)
    guards = [Waits()] if reply == "lost" else []
    async with Runtime(InAThread([made]), tools=[get_weather], interceptors=guards) as runtime:
        with record(tmp_path / "cancelled.jsonl", runtime):
            session = runtime.start("Well?")
            await anyio.sleep(2 if reply == "lost" else 0.5)
            session.cancel("enough")
            assert (await session.result()).usage == used
    (again,) = (await replay(tmp_path / "cancelled.jsonl")).results
    assert again is not None
    assert (again.outcome, again.usage) == ("cancelled", used)
