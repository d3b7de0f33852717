"""The file of a recording: what is written, and what is refused when it is read."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio
import orjson
import pytest
from pydantic import Field
from recorded_scenes import get_weather

from toolbus import EventBus, RequestSession, Runtime, ToolDispatcher, ToolRegistry, sub_request_tool, tool
from toolbus.errors import ConfigurationError
from toolbus.events import Event, RequestCompleted, SteeringAdded, ToolCallCompleted
from toolbus.messages import ToolMessage
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import ScriptedProvider, Step, calls, text
from toolbus.secrets import MASK
from toolbus.testing import Recorder, RecordingError, read_recording, record, replay, virtual_backends

anyio_backend = virtual_backends()

FOLDER = Path(__file__).parents[1] / "data" / "recordings"
PARALLEL = FOLDER / "parallel_calls_of_which_one_times_out.jsonl"
WEATHER = [calls(("get_weather", {"city": "Rome"})), text("24 degrees.")]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


class Kept:
    """A journal that keeps what it is given."""

    def __init__(self, fails_at: int = -1) -> None:
        self.facts: list[Event] = []
        self._fails_at = fails_at

    async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> None:
        assert request_id
        if seq <= self._fails_at < seq + len(facts):
            raise OSError("the disk is full")
        self.facts += facts


# ----------------------------------------------------------------------------------------------------- writing


async def test_a_recording_has_a_header_the_agreement_the_facts_in_order_and_an_end(tmp_path: Path):
    path, journal, bus = tmp_path / "new" / "weather.jsonl", Kept(), EventBus()
    with Recorder(path, bus, journal=journal) as recorder:
        session = RequestSession(
            bus,
            ScriptedProvider([text("Hello.")]),
            "Hi",
            journal=recorder,
            instructions="Be kind.",
            tools=[get_weather],
        )
        await session.run()
    header, agreed, *facts, end = lines_of(path)
    assert header["format"] == "toolbus-recording"
    assert header["version"] == 1
    assert agreed["instructions"] == "Be kind."
    assert agreed["limits"]["max_rounds"] == 10
    assert agreed["tools"][0]["name"] == "get_weather"
    assert [each["event_id"] for each in facts] == [each.event_id for each in journal.facts]
    assert end["lines"] == len(facts) + 2
    assert (recorder.requests, recorder.facts) == (1, len(facts))
    assert read_recording(path).requests[0].facts == journal.facts


async def test_what_people_ask_stands_where_the_session_took_it(tmp_path: Path):
    async with Runtime(ScriptedProvider([text("Hello.", delays=5), text("Well.")])) as runtime:
        with record(tmp_path / "r.jsonl", runtime):
            session = runtime.start("Hi")
            await anyio.sleep(1)
            session.steer("Please.")
            await anyio.sleep(1)
            await session.result()
    kinds = [each["type"] for each in lines_of(tmp_path / "r.jsonl")]
    assert kinds.index("steering_added") + 1 == kinds.index("model_responded")
    (request,) = read_recording(tmp_path / "r.jsonl").requests
    (steering,) = [each for each in request.facts if isinstance(each, SteeringAdded)]
    assert steering.at - request.facts[0].at == pytest.approx(1)


async def test_signals_are_written_when_they_are_wanted_and_pieces_apart(tmp_path: Path):
    async with Runtime(ScriptedProvider(WEATHER * 3), tools=[get_weather]) as runtime:
        for name, wanted in (("none", {}), ("signals", {"signals": True}), ("all", {"signals": True, "deltas": True})):
            with record(tmp_path / name, runtime, **wanted):
                await runtime.run("Rome?")
    kinds = {each: {line["type"] for line in lines_of(tmp_path / each)} for each in ("none", "signals", "all")}
    assert kinds["signals"] - kinds["none"] == {"tool_call_started", "status_changed"}
    assert kinds["all"] - kinds["signals"] == {"text_delta", "tool_arguments_delta"}
    for name in kinds:
        await replay(tmp_path / name)


async def test_a_runtime_is_as_it_was_after_the_block_and_recorded_once_at_a_time(tmp_path: Path):
    async with Runtime(ScriptedProvider([text("One."), text("Two."), text("Three.")])) as runtime:
        store = runtime.store
        await runtime.run("1", conversation_id="c")
        with record(tmp_path / "r.jsonl", runtime) as recorder:
            with pytest.raises(ConfigurationError, match="recorded already"), record(tmp_path / "x.jsonl", runtime):
                pass
            await runtime.run("2", conversation_id="c")
        await runtime.run("3", conversation_id="c")
        assert runtime.store is store
        assert len(await store.history("c")) == 6
    assert recorder.requests == 1
    (request,) = read_recording(tmp_path / "r.jsonl").requests
    assert [each["content"] for each in request.agreed["history"][:1]] == ["1"]


async def test_the_journal_behind_it_comes_first_and_what_it_refuses_is_not_recorded(tmp_path: Path):
    bus, journal = EventBus(), Kept(fails_at=3)
    with Recorder(tmp_path / "r.jsonl", bus, journal=journal) as recorder:
        result = await RequestSession(bus, ScriptedProvider([text("Hi.")]), "Hi", journal=recorder).run()
    assert result.outcome == "failed"
    (request,) = read_recording(tmp_path / "r.jsonl").requests
    assert request.facts == journal.facts
    assert request.was_released
    await replay(tmp_path / "r.jsonl")


async def test_the_journal_behind_it_is_not_given_what_it_was_not_given_before(tmp_path: Path):
    expert = sub_request_tool("expert", "Knows things.", provider=ScriptedProvider([text("Yes.")]))
    bus, journal = EventBus(), Kept()
    async with ToolDispatcher(bus, ToolRegistry([expert])):
        with Recorder(tmp_path / "r.jsonl", bus, journal=journal) as recorder:
            script = [calls(("expert", {"task": "Is it?"})), text("It is.")]
            session = RequestSession(bus, ScriptedProvider(script), "Is it?", tools=[expert], journal=recorder)
            await session.run()
    assert {each.request_id for each in journal.facts} == {session.request_id}
    assert recorder.requests == 2
    await replay(tmp_path / "r.jsonl")


async def test_a_tool_may_have_a_bound_of_more_than_64_bits(tmp_path: Path):
    @tool
    async def factor(n: Annotated[int, Field(le=2**70)]) -> str:
        """Return the factors of a number."""
        return str(n)

    bus = EventBus()
    with Recorder(tmp_path / "r.jsonl", bus) as recorder:
        await RequestSession(bus, ScriptedProvider([text("Hi.")]), "Hi", tools=[factor], journal=recorder).run()
    await replay(tmp_path / "r.jsonl")


async def test_a_disk_that_is_full_costs_the_recording_and_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    bus = EventBus()
    with pytest.raises(RecordingError, match="could not be written"), Recorder("/dev/full", bus) as recorder:
        result = await RequestSession(bus, ScriptedProvider([text("Hi.")]), "Hi", journal=recorder).run()
        assert result.outcome == "completed"
    assert sum("could not be written" in each.message for each in caplog.records) == 1


def test_a_file_that_cannot_be_made_is_reported_at_once(tmp_path: Path):
    with pytest.raises(RecordingError, match="cannot be created"):
        Recorder(tmp_path, EventBus())


def test_a_recording_is_readable_only_for_its_owner(tmp_path: Path):
    with Recorder(tmp_path / "new.jsonl", EventBus()):
        assert stat.S_IMODE((tmp_path / "new.jsonl").stat().st_mode) == 0o600


def test_a_recording_replaces_an_earlier_one_and_no_other_file(tmp_path: Path):
    path, empty = tmp_path / "notes.md", tmp_path / "new.jsonl"
    path.write_text("# Notes\n")
    with pytest.raises(RecordingError, match=r"notes\.md: it exists and is not a recording; pass another path"):
        Recorder(path, EventBus())
    assert path.read_text() == "# Notes\n"
    empty.touch()
    for _ in range(2):
        with Recorder(empty, EventBus()):
            pass
    assert len(empty.read_text().splitlines()) == 2


async def test_requests_that_still_run_at_the_end_are_recorded_so_far(tmp_path: Path):
    async with Runtime(ScriptedProvider([text("Hello.", delays=5)])) as runtime:
        with record(tmp_path / "r.jsonl", runtime):
            session = runtime.start("Hi")
            await anyio.sleep(1)
        await session.result()
    (request,) = read_recording(tmp_path / "r.jsonl").requests
    assert request.was_released
    assert not request.is_whole
    assert (await replay(tmp_path / "r.jsonl")).results == [None]


# ----------------------------------------------------------------------------------------------------- secrets


@tool
async def log_in(user: str, password: str, note: str = "") -> dict[str, Any]:
    """Log in."""
    return {"user": user, "token": "tok-" + password, "note": f"Authorization: Bearer {password * 4}"}


async def test_secrets_are_masked_at_every_place_and_the_recording_replays(tmp_path: Path):
    script = [
        calls(("log_in", '{"user": "ann",  "password": "hunter2hunter2"}')),
        text("Logged in with password=hunter2hunter2."),
    ]
    async with Runtime(ScriptedProvider(script), tools=[log_in]) as runtime:
        with record(tmp_path / "r.jsonl", runtime, mask=True):
            result = await runtime.run("Log in; the api_key is sk-abcdefghijklmnop.", metadata={"auth_token": "blue"})
    written = (tmp_path / "r.jsonl").read_text(encoding="utf-8")
    assert "hunter2" in result.text  # the request itself is as it was
    assert not [each for each in ("hunter2", "sk-abc", '"blue"') if each in written]
    assert MASK in written
    assert '\\"user\\":\\"ann\\"' in written
    await replay(tmp_path / "r.jsonl")


@tool
async def visit(url: str, tools: list[str]) -> dict[str, Any]:
    """Visit a page."""
    return {"url": url, "model": {"url": url}, "tools": tools}


async def test_what_an_application_names_like_a_field_of_events_is_masked_as_well(tmp_path: Path):
    where = "https://ann:hunter2@example.org/?token=hunter2hunter2"
    script = [calls(("visit", {"url": where, "tools": ["Bearer hunter2hunter2hunter2"]})), text("Seen.")]
    async with Runtime(ScriptedProvider(script), tools=[visit]) as runtime:
        with record(tmp_path / "r.jsonl", runtime, mask=True):
            await runtime.run("Visit it.", metadata={"url": where})
    assert "hunter2" not in (tmp_path / "r.jsonl").read_text(encoding="utf-8")
    await replay(tmp_path / "r.jsonl")


async def test_a_masked_recording_replays_what_the_model_has_read_of_a_long_result(tmp_path: Path):
    @tool
    async def read_book() -> str:
        """Read the book."""
        return "word " * 2_000

    def reads_on(request: ModelRequest) -> Step:
        book = request.messages[-1]
        assert isinstance(book, ToolMessage)
        return calls(("read_result", {"call_id": book.call_id, "offset": 4_000}))

    provider = ScriptedProvider([calls(("read_book", {})), reads_on, text("Read.")])
    async with Runtime(provider, tools=[read_book]) as runtime:
        with record(tmp_path / "r.jsonl", runtime, mask=True):
            assert (await runtime.run("Read it.")).tool_calls[1].ok
    await replay(tmp_path / "r.jsonl")


async def test_a_mask_may_be_the_applications_own(tmp_path: Path):
    async with Runtime(ScriptedProvider(WEATHER), tools=[get_weather]) as runtime:
        with record(tmp_path / "r.jsonl", runtime, mask=lambda text: text.replace("Rome", "ROMA")):
            await runtime.run("Rome?")
    assert "Rome" not in (tmp_path / "r.jsonl").read_text(encoding="utf-8")
    replayed = await replay(tmp_path / "r.jsonl")
    assert replayed.results[0] is not None
    assert replayed.results[0].tool_calls[0].arguments == {"city": "ROMA"}


async def test_values_that_are_no_json_are_written_as_text(tmp_path: Path):
    bus = EventBus()
    with Recorder(tmp_path / "r.jsonl", bus) as recorder:
        session = RequestSession(
            bus, ScriptedProvider([text("Hi.")]), "Hi", journal=recorder, metadata={"path": Path("x"), "odd": {1: 2}}
        )
        await session.run()
    replayed = await replay(tmp_path / "r.jsonl")
    assert replayed.facts == 5
    assert lines_of(tmp_path / "r.jsonl")[-2]["metadata"] == {"path": "x", "odd": {"1": 2}}


# ----------------------------------------------------------------------------------------------------- reading


def refused(tmp_path: Path, content: bytes) -> RecordingError:
    (tmp_path / "r.jsonl").write_bytes(content)
    with pytest.raises(RecordingError) as caught:
        read_recording(tmp_path / "r.jsonl")
    return caught.value


def test_a_newer_format_is_refused_by_its_name(tmp_path: Path):
    error = refused(tmp_path, b'{"type":"recording","format":"toolbus-recording","version":2,"toolbus":"9.1"}\n')
    assert (error.line, error.problem) == (
        1,
        "the file has format 2 (by toolbus 9.1), and this toolbus reads formats up to 1: use a newer one",
    )


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"{}\n", b"[]\n", b"Dear Sir\n", b'{"format":"x","version":1}\n', b"\xff\xfe\n"]
)
def test_what_is_no_recording_is_refused(content: bytes, tmp_path: Path):
    assert "this is not a recording" in refused(tmp_path, content).problem


@pytest.mark.parametrize("version", [b"0", b"null", b"true", b'"1"'])
def test_a_version_that_is_none_is_refused(version: bytes, tmp_path: Path):
    error = refused(tmp_path, b'{"format":"toolbus-recording","version":' + version + b"}\n")
    assert "whole number from 1" in error.problem


def test_a_file_that_is_cut_off_anywhere_is_refused_with_its_line(tmp_path: Path):
    whole = PARALLEL.read_bytes()
    for size in range(0, len(whole), 97):
        error = refused(tmp_path, whole[:size])
        assert error.line == max(1, whole[:size].count(b"\n") + (whole[size - 1 : size] != b"\n"))
    lines = whole.splitlines(keepends=True)
    for count in range(2, len(lines)):
        error = refused(tmp_path, b"".join(lines[:count]))
        assert error.line == count
        assert "cut off" in error.problem


async def test_what_there_is_of_a_file_that_is_cut_off_can_be_replayed(tmp_path: Path):
    whole = PARALLEL.read_bytes()
    lines = whole.splitlines(keepends=True)
    for count in range(3, len(lines)):
        (tmp_path / "r.jsonl").write_bytes(b"".join(lines[:count]) + lines[count][:7])
        replayed = await replay(tmp_path / "r.jsonl", partial=True)
        assert replayed.facts == count - 2


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"type": "request_com', "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"type": "no_such_event"}', "cannot be read"),
        (b'{"type": "round_started", "round": "first"}', "cannot be read"),
        (
            b'{"type": "round_started", "round": 1, "message_count": 1, "request_id": "x"}',
            "which no earlier line begins",
        ),
        (b'{"type": "request", "request_id": "para-1"}', "begins a second time"),
        (b'{"type": "request"}', "no request_id"),
        (b'{"type": "request_started", "timeout_seconds": 1, "request_id": "para-1"}', "begins a second time"),
        (b'{"type": "end"}', "a line after the last one"),
    ],
)
def test_a_damaged_line_is_named(line: bytes, problem: str, tmp_path: Path):
    lines = PARALLEL.read_bytes().splitlines()
    lines.insert(6, line)
    error = refused(tmp_path, b"\n".join(lines) + b"\n")
    assert error.line == (8 if b"end" in line else 7)
    assert problem in error.problem
    assert str(error).startswith(f"{tmp_path / 'r.jsonl'}:{error.line}: ")


def test_a_byte_that_has_flipped_is_noticed(tmp_path: Path):
    content = PARALLEL.read_bytes().replace(b"24", b"25")
    assert "was changed after it was written" in refused(tmp_path, content).problem


def test_fields_of_a_newer_toolbus_are_passed_over(tmp_path: Path):
    lines = lines_of(PARALLEL)
    for each in lines:
        each["shade"] = "blue"
    lines[1]["limits"]["max_moons"] = 3
    del lines[-1]["sha256"]
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in lines))
    recording = read_recording(path)
    assert isinstance(recording.requests[0].facts[-1], RequestCompleted)
    anyio.run(replay, path)


def test_recordings_are_values_that_can_be_looked_at():
    recording = read_recording(FOLDER / "requests_within_requests.jsonl")
    above, *below = recording.requests
    assert not above.is_sub_request
    assert [each.is_sub_request for each in below] == [True, True, True]
    assert any(isinstance(each, ToolCallCompleted) and each.spent for each in above.facts)
    with contextlib.suppress(StopIteration):
        assert next(iter(recording.signals))
