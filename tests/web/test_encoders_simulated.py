"""Simulated requests through both encoders: the protocols' rules hold for each, live and for late pages.

`dev.py soak --only pages` checks 10,000 requests in each of its runs, from fresh seeds.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import count, pairwise
from typing import Any

import pytest

from toolbus.events import (
    Event,
    MessageAppended,
    ModelResponded,
    RequestCompleted,
    RequestEnding,
    RequestStarted,
    SubscriberLagged,
    ToolCallCompleted,
)
from toolbus.testing.simulation import run_seed
from toolbus.testing.simulation._tools import BACKGROUND, EXTERNAL
from toolbus.testing.simulation._watch import Watch
from toolbus.web import AguiEncoder, EventEncoder, VercelEncoder
from toolbus.web._responses import _SETTLING_SECONDS
from toolbus.web._shown_call import PieceWise, ShownCall
from web.ui_grammar import Chunk, check_agui, check_vercel

PAGES_OWN = EXTERNAL - BACKGROUND  # clients answer the calls of their newest step only
REQUESTS = 250  # in each share: a test holds all of its buses until it ends, so longer ones would become slow
SHARES = int(os.environ.get("TOOLBUS_WEB_SHARES", "1"))
FIRST = int(os.environ.get("TOOLBUS_WEB_SEED", "0"))


def vercel_7(**options: Any) -> EventEncoder:
    return VercelEncoder(ai_sdk_version=7, **options)


def agui(**options: Any) -> EventEncoder:
    return AguiEncoder("thread", "run", **options)


CHECKS: dict[str, tuple[Callable[..., EventEncoder], Callable[..., dict[str, str]]]] = {
    "vercel 6": (VercelEncoder, check_vercel),
    "vercel 7": (vercel_7, check_vercel),
    "ag-ui": (agui, check_agui),
}


Life = list[tuple[float, Event]]
"""The events of a request in one process, in order, each with its moment on the clock of the bus."""


def lives_of(seeds: Iterable[int], monkeypatch: pytest.MonkeyPatch) -> Iterable[tuple[int, list[Life]]]:
    """For each seed, the life of each request in each process that heard of it, until it ended there.

    A request that ended because its store had failed may be resumed, also by the same process: that is another life.
    """
    heard: dict[tuple[int, str, int], Life] = {}
    endings: Counter[tuple[int, str]] = Counter()
    watch = Watch.__call__

    def listen(self: Watch, event: Event) -> None:
        life = (id(self), event.request_id)
        heard.setdefault((*life, endings[life]), []).append((self._now(), event))
        endings[life] += isinstance(event, RequestEnding)
        watch(self, event)

    monkeypatch.setattr(Watch, "__call__", listen)
    for seed in seeds:
        run_seed(seed)
        yield seed, list(heard.values())
        heard.clear()
        endings.clear()


def streamed(encoder: EventEncoder, events: Sequence[Event]) -> list[Chunk]:
    """A stream to the end of the events: their ending, or the end of the server."""
    chunks = [chunk for event in events for chunk in encoder.feed(event)]
    return chunks + encoder.close()


def with_gaps(events: Sequence[Event]) -> list[Event]:
    """The events as a slow reader gets them: of three signals, the first is lost."""
    found: list[Event] = []
    signals = 0
    for position, event in enumerate(events):
        signals += not event.is_fact
        lost = not event.is_fact and signals % 3 == 1
        found.append(SubscriberLagged(first_position=position, last_position=position, count=1) if lost else event)
    return found


def check_texts(texts: dict[str, str], events: Sequence[Event]) -> None:
    """What a page ends with is what the model has said."""
    for event in events:
        if isinstance(event, ModelResponded) and event.message.text.strip():
            found = [text for shown, text in texts.items() if shown.startswith(event.message.message_id)]
            assert found[-1] == event.message.text


def check_results(chunks: Sequence[Chunk], events: Sequence[Event]) -> None:
    """Each result of a call that the page shows is there, as it is."""
    begins = {"tool-input-start", "TOOL_CALL_START"}
    shown = {each["toolCallId"].partition("~")[0]: each["toolCallId"] for each in chunks if each["type"] in begins}
    found = {
        each["toolCallId"]: each.get("output", each.get("content"))
        for each in chunks
        if each["type"] in {"tool-output-available", "TOOL_CALL_RESULT"} and "preliminary" not in each
    }
    for event in events:
        if isinstance(event, ToolCallCompleted) and event.call_id in shown and not event.parts:
            assert found[shown[event.call_id]] in (event.content, event.data)


def check_steered(chunks: Sequence[Chunk], events: Sequence[Event]) -> None:
    """What a person has sent meanwhile is shown when it joins the transcript."""
    messages = [each.message for each in events if isinstance(each, MessageAppended)]
    steered = [each.message_id for each in messages if re.fullmatch(r".+_s\d+", each.message_id)]
    shown = [each for each in chunks if each["type"] == "data-steered" or each.get("role") == "user"]
    assert [each.get("id") or each["messageId"] for each in shown] == steered


def check_life(events: list[Event]) -> int:
    """Check the streams of one request in one process, and return how many there were."""
    streams = 0
    for made, check in CHECKS.values():
        facts = [each for each in events if each.is_fact]
        for heard in (events, facts, events[len(events) // 2 :], with_gaps(events)):
            for client_tools in ((), EXTERNAL):
                if not any(made(client_tools=client_tools).feed(event) for event in heard):
                    continue
                chunks = streamed(made(client_tools=client_tools), heard)
                check_texts(check(chunks), heard)
                check_results(chunks, heard)
                check_steered(chunks, heard)
                streams += 1
    return streams


def check_pauses(life: Life) -> int:
    """Check that a page that has answered gets what it does not have, and nothing twice. Return the number of pauses."""
    events = [event for _, event in life]
    if not isinstance(events[0], RequestStarted):
        return 0
    pauses = 0
    for made, check in CHECKS.values():
        encoder = made(client_tools=PAGES_OWN)
        chunks: list[Chunk] = []
        for (moment, event), (following, _) in pairwise(life):
            chunks += encoder.feed(event)
            # A response waits for what is under way.
            if encoder.waits_for_client and following > moment + _SETTLING_SECONDS:
                before = check([*chunks, *encoder.pause()])
                waiting, own = open_calls(chunks), pages_own(chunks)
                # As `ClientRequest.answered` has them.
                answered = {each.partition("~")[0] + ("_result" if each in own else "") for each in waiting}
                rest = streamed(made(client_tools=PAGES_OWN, answered=answered), events)
                after = check(rest, known=waiting - (own if check is check_agui else set()))
                assert not before.keys() & after.keys()
                check_texts(before | after, events)
                pauses += 1
                break
    return pauses


def pages_own(chunks: Sequence[Chunk]) -> set[str]:
    """The calls that the page itself answers. A client of AG-UI has their results already."""
    return {each["toolCallId"] for each in chunks if each.get("toolCallName") in PAGES_OWN}


def open_calls(chunks: Sequence[Chunk]) -> set[str]:
    """The calls of a stream that have neither a result nor an error."""
    shown = {each["toolCallId"] for each in chunks if each["type"] in {"tool-input-start", "TOOL_CALL_START"}}
    ended = {"tool-output-available", "tool-output-error", "tool-output-denied", "tool-input-error", "TOOL_CALL_RESULT"}
    return shown - {each["toolCallId"] for each in chunks if each["type"] in ended and "preliminary" not in each}


def check_seeds(seeds: Iterable[int], requests: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Check the requests of the seeds, until there were enough of them. Return how many pauses there were."""
    checked = pauses = 0
    for seed, lives in lives_of(seeds, monkeypatch):
        for life in lives:
            events = [event for _, event in life]
            try:
                check_life(events)
                pauses += check_pauses(life)
            except Exception as exc:
                exc.add_note(f"seed {seed}, request {events[0].request_id}")
                raise
        checked += len({event.request_id for life in lives for _, event in life[:1]})
        if checked >= requests:
            break
    return pauses


@pytest.mark.repeats("request after request")
@pytest.mark.parametrize("share", range(SHARES))
def test_the_rules_hold_for_simulated_requests(share: int, monkeypatch: pytest.MonkeyPatch):
    assert check_seeds(count(FIRST + share, SHARES), REQUESTS, monkeypatch) >= 5


def nothing(*_: object) -> None:
    """Forget to do it."""


def no_rest(_pieces: PieceWise, _whole: str) -> str:
    return ""


def rest_without_a_look(pieces: PieceWise, whole: str) -> str:
    return whole[len("".join(pieces._pieces)) :]


def everything(_encoder: EventEncoder, _event: Event) -> bool:
    return True


def ends_instead(encoder: AguiEncoder, _waiting: list[ShownCall]) -> None:
    encoder.on_end(RequestCompleted(), "")


BUGS: dict[str, tuple[type, str, Callable[..., object]]] = {
    "void replies stay open": (EventEncoder, "_void_reply", nothing),
    "steps stay open": (EventEncoder, "_end_step", nothing),
    "the rest of a text is forgotten": (PieceWise, "rest", no_rest),
    "a gap is not noticed": (PieceWise, "rest", rest_without_a_look),
    "void calls are forgotten": (VercelEncoder, "on_void_call", nothing),
    "messages are forgotten": (EventEncoder, "_take_message", nothing),
    "results are forgotten": (EventEncoder, "_take_result", nothing),
    "a call is shown with its results only": (AguiEncoder, "on_call", nothing),
    "a page gets everything again": (EventEncoder, "_ends_left_out", everything),
    "pages are not asked": (AguiEncoder, "on_pause", ends_instead),
}


@pytest.mark.repeats("the same requests")
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch):
    where, name, wrong = BUGS[bug]
    monkeypatch.setattr(where, name, wrong)
    taken = {"_take_result": ToolCallCompleted, "_take_message": MessageAppended}
    if kind := taken.get(name):
        monkeypatch.setattr(EventEncoder, "_takes", {**EventEncoder._takes, kind: wrong})
    with pytest.raises((AssertionError, LookupError)):
        check_seeds(count(), REQUESTS, monkeypatch)
