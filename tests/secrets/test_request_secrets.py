"""The secrets of one request: what a process that knows all, some or none of them delivers, hides and compares."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import Secret, SecretStr

from toolbus.errors import ConfigurationError, InvalidArguments
from toolbus.events import ApprovalDecided, Event, ReasoningDelta, TextDelta, ToolArgumentsDelta
from toolbus.messages import AssistantMessage, UserMessage
from toolbus.protocols import (
    ArgumentsPiece,
    Delta,
    Heartbeat,
    ModelReply,
    ReasoningPiece,
    SecretHandling,
    TextPiece,
    ToolSpec,
)
from toolbus.secrets import MASK, NO_SECRETS, REFERENCE, GivenSecrets, RequestSecrets, find_marks, marked_in
from toolbus.tool_results import render

VALUE, OTHER = "hunter2-hunter2", "swordfish-1234"
SCHEMA: dict[str, Any] = {"properties": {"password": {"type": "string", "writeOnly": True}}}
MARKS = find_marks(SCHEMA)
REF = "secret:0123456789abcdef"


def own(*, keeps: bool) -> RequestSecrets:
    state: Any = SimpleNamespace(request_id="r", output=None)
    secrets = RequestSecrets(state)
    if keeps:
        secrets.keep()
    return secrets


def given(request_id: str = "r") -> GivenSecrets:
    return GivenSecrets([("mail", VALUE)], request_id, "c")


HANDLINGS: dict[str, Callable[[], SecretHandling]] = {
    "none yet": lambda: own(keeps=False),
    "all": lambda: own(keeps=True),
    "some": given,
    "of another process": lambda: NO_SECRETS,
}


@pytest.fixture(params=[*HANDLINGS])
def secrets(request: pytest.FixtureRequest) -> SecretHandling:
    """The secrets of one request, made anew for each test: for as long as they live, its log lines are masked."""
    return HANDLINGS[request.param]()


def test_calls_are_equal_if_their_arguments_are(secrets: SecretHandling) -> None:
    assert secrets.digest(b"one") == secrets.digest(b"one") != secrets.digest(b"two")


def test_arguments_without_references_are_delivered_as_they_are_and_unknown_references_are_refused(
    secrets: SecretHandling,
) -> None:
    assert MARKS is not None
    assert secrets.deliver({"password": "new", "note": REF}, MARKS) == {"password": "new", "note": REF}
    with pytest.raises(InvalidArguments, match=REF):
        secrets.deliver({"password": REF}, MARKS)


def test_what_holds_no_secret_is_not_changed(secrets: SecretHandling) -> None:
    message = UserMessage(content="Hello.")
    assert secrets.mask(message) is message


def test_the_text_of_an_error_is_masked_in_place() -> None:
    secrets, error = own(keeps=False), ConfigurationError(f"not {VALUE}")
    assert secrets.words(error) is error
    reference = secrets.keep().hide(VALUE)
    assert secrets.words(error) is error
    assert str(error) == f"not {reference}"


@pytest.mark.parametrize(
    ("name", "call_id", "hides"), [("login", "1", True), ("look", "1", False), ("login", "2", False)]
)
def test_marked_fields_of_arguments_that_a_person_has_edited_are_hidden(
    name: str, call_id: str, *, hides: bool
) -> None:
    state: Any = SimpleNamespace(request_id="r", open_calls={"1": SimpleNamespace(call=SimpleNamespace(name=name))})
    secrets = RequestSecrets(state)
    secrets.keep()
    assert MARKS is not None
    secrets.marked = {"login": MARKS}
    edited = {"password": "typed-by-hand", "note": "n"}
    masked = secrets.mask(ApprovalDecided(request_id="r", call_id=call_id, approved=True, arguments=edited))
    assert masked.arguments is not None
    assert masked.arguments["note"] == "n"
    assert (masked.arguments["password"] == "typed-by-hand") != hides
    as_it_was = ApprovalDecided(request_id="r", call_id=call_id, approved=True)
    assert secrets.mask(as_it_was) == as_it_was


def test_a_worker_knows_the_secrets_with_a_name_and_masks_all_others() -> None:
    secrets = given()
    assert MARKS is not None
    result = {
        "one": SecretStr(VALUE),
        "in": SecretStr(f"it is {VALUE}"),
        "other": SecretStr(OTHER),
        "pin": Secret(4711),
    }
    hidden = secrets.hide(render(result)).data
    assert REFERENCE.fullmatch(hidden["one"])
    assert [hidden[name] for name in ("in", "other", "pin")] == [MASK] * 3
    assert secrets.deliver({"password": hidden["one"]}, MARKS) == {"password": VALUE}
    assert secrets.mask(UserMessage(content=f"It is {VALUE}.")).content == f"It is {hidden['one']}."
    with pytest.raises(InvalidArguments, match=f"the worker that runs the tool was not given the secret of {REF}"):
        secrets.deliver({"password": REF}, MARKS)


def test_a_worker_hides_the_secrets_that_it_was_given_in_its_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("toolbus.dispatcher")
    monkeypatch.setattr(logger, "filters", [])
    secrets = given("of a worker")
    logger.warning("it is %s", VALUE, extra={"request_id": "of a worker"})
    assert secrets.vault is not None
    given("of another worker")
    assert len(logger.filters) == 1
    assert caplog.messages == [f"it is {secrets.vault.shown(VALUE)}"]
    assert VALUE not in caplog.text


@pytest.mark.guarantee("G36")
def test_the_log_hides_the_secrets_of_a_request_from_all_that_have_some_in_this_process(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, a worker of each pool; the one that was given its secrets last may be gone first."""
    logger = logging.getLogger("toolbus.dispatcher")
    monkeypatch.setattr(logger, "filters", [])
    first, second = given("shared"), GivenSecrets([("pin", "another secret")], "shared", "")
    logger.warning("they are %s and %s", VALUE, "another secret", extra={"request_id": "shared"})
    del second
    logger.warning("it is %s", VALUE, extra={"request_id": "shared"})
    assert first.vault is not None
    assert VALUE not in caplog.text
    assert "another secret" not in caplog.text


def test_the_marks_of_tools_that_are_not_in_a_registry_are_found_in_their_schemas() -> None:
    login, look = ToolSpec(name="login", parameters=SCHEMA), ToolSpec(name="look", parameters={"type": "object"})
    tools: Any = SimpleNamespace(specs={"login": login, "look": look})
    assert list(marked_in(tools)) == ["login"]


@pytest.mark.parametrize(("above_keeps", "below_keeps"), [(True, False), (False, True), (True, True), (False, False)])
def test_a_request_and_the_one_above_it_share_a_vault_once_either_has_one(above_keeps: bool, below_keeps: bool) -> None:
    above, below = own(keeps=above_keeps), own(keeps=below_keeps)
    below.join(above)
    assert below.vault is above.vault
    assert (below.vault is None) is not (above_keeps or below_keeps)


@pytest.mark.parametrize(
    ("piece", "has_output", "kind"),
    [
        (TextPiece("{"), True, TextDelta),
        (ReasoningPiece("Well"), True, ReasoningDelta),
        (ArgumentsPiece(0, "log", "{"), False, ToolArgumentsDelta),
        (ArgumentsPiece(0, "log", ""), False, None),
        (Heartbeat(), True, None),
    ],
)
def test_pieces_that_are_not_published_still_show_that_the_model_answers(
    piece: Delta, has_output: bool, kind: type[Event] | None
) -> None:
    """A long structured output, of which nothing is published, must not be ended by the timer of a stalled stream."""
    secrets, published, fed, kinds = own(keeps=True), list[Delta](), list[Delta](), list[type[Event]]()
    assert MARKS is not None
    secrets.marked, secrets.answer = {"login": MARKS}, MARKS if has_output else None
    mask = secrets.reply({}, emit=published.append, feed=fed.append, note_kind=kinds.append)
    mask.emit(piece)
    assert (published, fed, kinds) == ([], [piece], [] if kind is None else [kind])


def test_what_a_vendor_keeps_beside_a_text_goes_with_the_secret_in_the_text() -> None:
    said = AssistantMessage(text=f"It is {VALUE}.", vendor_data={"vendor": ["signature of the text"]})
    assert given().mask(said).vendor_data is None
    assert NO_SECRETS.mask(said) is said


def test_what_was_held_back_of_a_reply_comes_with_its_end() -> None:
    published, said = list[Any](), f"It is not {VALUE[:5]}"
    secrets = own(keeps=True)
    secrets.keep().hide(VALUE)
    mask = secrets.reply({}, emit=published.append, feed=published.append, note_kind=published.append)
    mask.emit(TextPiece(said))
    assert "".join(each.text for each in published) == "It is not "
    reply = ModelReply(message=AssistantMessage(text=said))
    assert mask.whole(reply) is reply
    assert "".join(each.text for each in published) == said
