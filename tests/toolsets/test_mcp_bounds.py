"""The bounds on lines that programs write: what is passed on, and from where on nothing is."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from typing import Any

import pytest
from mcp.types import jsonrpc_message_adapter
from pydantic import ValidationError

from support.watchdog import MAX_SECONDS, cpu_seconds
from toolbus.toolsets.mcp._bounds import LINES, bounded_lines, excess

VALUES = b"[%s]" % b",".join([b"1"] * 100_001)  # one value too many


def decoder(
    max_bytes: int, reasons: list[str], errors: str = "strict", heard: Callable[[str], None] = lambda _line: None
) -> Callable[[bytes], str]:
    with bounded_lines(max_bytes, reasons.append, heard):
        return codecs.getincrementaldecoder(LINES)(errors).decode


ONE, TWO = b'{"jsonrpc":1}', b' {"jsonrpc":2}'


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([ONE + b"\n"], [ONE + b"\n"]),
        ([ONE[:5], ONE[5:], b"\n"], [b"", b"", ONE + b"\n"]),
        ([ONE + b"\n" + TWO + b"\n" + ONE[:1], ONE[1:] + b"\n" + TWO], [ONE + b"\n" + TWO + b"\n", ONE + b"\n"]),
        ([ONE + b"\n", b""], [ONE + b"\n", b""]),
        ([ONE[:-1] + "ü".encode()[:1], "ü}\n".encode()[1:]], [b"", ONE[:-1] + "ü}\n".encode()]),
        ([codecs.BOM_UTF8[:2], codecs.BOM_UTF8[2:] + ONE + b"\n"], [b"", ONE + b"\n"]),
        ([ONE + b" " * 7 + b"\n" + ONE + b" " * 7, b"\n"], [ONE + b" " * 7 + b"\n"] * 2),
    ],
)
def test_whole_lines_with_messages_are_passed_on(pieces: list[bytes], shown: list[bytes]) -> None:
    reasons = list[str]()
    decode = decoder(20, reasons)
    assert ([decode(each).encode() for each in pieces], reasons) == (shown, [])


@pytest.mark.parametrize("pieces", [[b"0123456789", b"x"], [b"0123456789x\n"], [b"01234\n", b"56789012345"]])
def test_from_a_line_that_is_too_long_on_nothing_is_passed_on_and_it_is_reported_once(pieces: list[bytes]) -> None:
    reasons = list[str]()
    decode = decoder(10, reasons)
    shown = [decode(each) for each in (*pieces, b"\n", ONE + b"\n", b"x" * 20)]
    assert (shown[-4:], reasons) == ([""] * 4, ["a line has more than 10 bytes"])


def test_a_line_of_too_many_values_is_not_passed_on_either() -> None:
    reasons = list[str]()
    decode = decoder(1_000_000, reasons)
    assert (decode(VALUES), reasons) == ("", []), "it may end later"
    assert (decode(b"\n"), decode(ONE + b"\n")) == ("", "")
    assert reasons == ["a line has more than 100,000 values"]


def test_characters_that_cannot_be_read_are_treated_as_the_stream_says() -> None:
    line = ONE + b"\xff\n"
    assert decoder(20, [], "replace")(line) == f"{ONE.decode()}\ufffd\n"
    with pytest.raises(UnicodeDecodeError):
        decoder(20, [])(line)


def test_lines_that_are_no_messages_are_heard_and_dropped() -> None:
    """The SDK would log a traceback for each of them; after a failed write to a program, these are its last words."""
    heard, reasons = list[str](), list[str]()
    decode = decoder(100, reasons, "replace", heard.append)
    said = b'Usage: serve [--stdio]\n{"level": 1}\n  {"jsonrpc": 1}\n\n \n[INFO] "jsonrpc" \xff\n'
    assert decode(said[:10]) == ""
    assert decode(said[10:]) == '  {"jsonrpc": 1}\n'
    assert [each.strip() for each in heard if each.strip()] == [
        "Usage: serve [--stdio]",
        '{"level": 1}',
        '[INFO] "jsonrpc" \N{REPLACEMENT CHARACTER}',
    ]
    assert reasons == []


def test_a_text_may_have_as_many_bytes_as_the_bound_says_and_other_encodings_stay_unknown() -> None:
    assert (excess(b"12345", 5), excess(b"123456", 5)) == ("", "has more than 5 bytes")
    assert excess(VALUES, len(VALUES)) == "has more than 100,000 values"
    with pytest.raises(LookupError):
        codecs.lookup("toolbus_nothing")


KINDS: dict[str, Callable[[int], Any]] = {
    "lists": lambda count: [list[int]()] * (count // 2),
    "objects": lambda count: [{"a": 1}] * (count // 2),
    "members": lambda count: {f"k{number}": 1 for number in range(count)},
}
HOLDERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "id": lambda many: {"id": many},
    "unknown field": lambda many: {"id": 1, "unknown": many},
    "parameters": lambda many: {"method": "notifications/message", "params": {"data": many}},
    "error": lambda many: {"id": 1, "error": {"code": 1, "message": "", "data": many}},
    "both": lambda many: {"id": 1, "result": {"values": many}, "error": {"data": 1}},
    "result": lambda many: {"id": 1, "result": [many]},
}


def line_of(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **fields}, separators=(",", ":")).encode()


@pytest.mark.guarantee("G14")
@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_message_is_refused_or_quick_to_read_wherever_its_values_are(kind: str, holder: str) -> None:
    large, small = (line_of(**HOLDERS[holder](KINDS[kind](count))) for count in (90_000, 9_000))
    assert cpu_seconds(lambda: excess(large, 10_000_000)) < MAX_SECONDS
    assert excess(large, 10_000_000) == "has more than 10,000 values, and not only in a result that is strict JSON"
    assert excess(small, 10_000_000) == ""

    def read() -> None:
        try:
            jsonrpc_message_adapter.validate_json(small, by_name=False)
        except ValidationError:
            return

    assert cpu_seconds(read) < MAX_SECONDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_result_is_read(kind: str) -> None:
    assert excess(line_of(id=1, result={"values": KINDS[kind](90_000)}), 10_000_000) == ""


def test_a_large_result_that_is_no_strict_json_is_not_read() -> None:
    line = line_of(id=1, result={"values": [float("nan")] * 20_000})
    assert excess(line, 10_000_000) == "has more than 10,000 values, and not only in a result that is strict JSON"


def test_halves_of_surrogate_pairs_are_replaced() -> None:
    assert decoder(100, [])(rb'{"jsonrpc":"\ud83d"}' + b"\n") == '{"jsonrpc":"\\ufffd"}\n'
