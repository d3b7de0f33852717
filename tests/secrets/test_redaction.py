"""Secrets are known by their names, their forms and their chance; what people write stays."""

from __future__ import annotations

import base64
import json
import random
import string
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.watchdog import MAX_SECONDS, cpu_seconds
from toolbus.secrets import MASK, hide, is_secret_name, masked, redacted
from toolbus.secrets._redaction import _pieces  # pyright: ignore[reportPrivateUsage]

NAMES = [
    "password", "userPassword", "PASSWORD", "passwd", "db_passwd2", "secret", "client-secret", "token", "accessToken",
    "api_key", "apikey", "apiKey", "APIKey", "X-API-Key", "authorization", "Proxy-Authorization", "cookie", "Set-Cookie",
    "credential", "credentials", "private_key", "privateKey", "access_key", "aws_secret_access_key", "pin", "pin_code",
    "ssn", "otp", "cvv", "session_id", "csrftoken", "_csrf", "XSRF-TOKEN", "pwd", "jwt", "cardNumber",
]  # fmt: skip
PLAIN_NAMES = [
    "city", "query", "keyword", "key", "author", "monkey", "spin", "pinned", "compass_weight", "secretary", "passport",
    "tokenizer", "passage", "session_title", "", "日本",
]  # fmt: skip

KEY = "sk-proj-" + "abcdefghij0123456789"
SECRETS = [
    (KEY, MASK),
    (f"use {KEY} now", f"use {MASK} now"),
    ("Authorization: Bearer abcdefghijk1234", f"Authorization{MASK}"),
    ("a bearer abcdefghijk1234, and", f"a bearer {MASK}, and"),
    ("Basic dXNlcjpwYXNz", f"Basic {MASK}"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", MASK),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY----- tail", f"{MASK} tail"),
    ("-----BEGIN PRIVATE KEY-----\nMIIabc\nand it is cut", MASK),
    ("https://me:hunter2@host/a", f"https://me:{MASK}@host/a"),
    ("curl -u me:hunter2 https://x", f"curl -u me:{MASK} https://x"),
    ("mysql --password hunter2 shop", f"mysql --password {MASK} shop"),
    ("tokens=4x8y2z next, tokens=1-2", f"tokens={MASK} next, tokens={MASK}"),
    ("token=12, token_limits=x", f"token={MASK}, token_limits={MASK}"),
    ("password=hunter2 next", f"password={MASK} next"),
    ('{"api_key": "hunter2", "city": "Paris"}', '{"api_key": "' + MASK + '", "city": "Paris"}'),
    ("Cookie: a=b; c=d", f"Cookie{MASK}"),
    ("https://example.com/search?q=limits&token=abc", f"https://example.com/search?q=limits&token={MASK}"),
    ("ghp_abcdefghij0123456789", MASK),
    ("AKIAIOSFODNN7EXAMPLE", MASK),
    ("550e8400-e29b-41d4-a716-446655440000", MASK),
    ("3f786850e387550fdab836ed7e6dc881de23001b", MASK),
]
PLAIN = [
    "",
    "Looking up the weather in Paris for the 3rd of May 2026",
    "the basic understanding of bearer bonds",
    "src/toolbus/core/narration_v2.py:123",
    "report_2024-01-15_final_version_for_customer.pdf",
    "getUserAccountBalanceForCustomer",
    "https://docs.example.com/how-to/test-with-events.html#read-a-failure",
    "SELECT * FROM tokens WHERE id = 1",
    "max_output_tokens=100000, budget.max_tokens=250.5, 'max_tokens': 200",
    "gpt-5-mini-2025-08-07",
    "1234567890123456789012345",
    "Donaudampfschifffahrtsgesellschaft",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_secrets_are_known_in_every_spelling(name: str):
    assert is_secret_name(name)
    assert redacted({name: "x", "deep": [{name: {"a": 1}}]}) == {name: MASK, "deep": [{name: MASK}]}


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_names_that_only_look_alike_hide_nothing(name: str):
    assert not is_secret_name(name)
    assert redacted({name: "x"}) == {name: "x"}


@pytest.mark.parametrize(("text", "shown"), SECRETS)
def test_what_looks_like_a_key_is_hidden_in_text(text: str, shown: str):
    assert masked(text) == shown
    assert masked(shown) == shown
    assert redacted({"q": [text]}) == {"q": [shown]}


@pytest.mark.parametrize("text", PLAIN)
def test_what_people_write_is_not_hidden(text: str):
    assert masked(text) == text


def test_nearly_all_random_keys_are_hidden_wherever_they_stand():
    chance = random.Random(20)
    letters = string.ascii_letters + string.digits
    made = [
        key
        for _ in range(1000)
        for key in (
            "".join(chance.choices(letters, k=40)),
            chance.randbytes(20).hex(),
            base64.urlsafe_b64encode(chance.randbytes(30)).decode(),
        )
    ]
    shown = [key for key in made if key in masked(f"key is {key}.")]
    assert len(shown) <= 3


def test_the_value_of_a_pair_is_hidden_when_its_name_is_a_secret_s():
    headers = [{"name": "Authorization", "value": "x"}, {"name": "Accept", "value": "y"}]
    assert redacted({"headers": headers}) == {
        "headers": [{"name": "Authorization", "value": MASK}, {"name": "Accept", "value": "y"}]
    }


COUNTS = ["max_tokens", "maxTokens", "tokens", "tokens_used", "max_tokens_per_reply", "token_limit", "tokenCount"]


@pytest.mark.parametrize("name", COUNTS)
def test_numbers_of_tokens_are_no_secrets(name: str):
    shown = {name: 200, "deep": [{name: 0.5}], "unset": {name: None}, "text": f"{name}=200, '{name}': 0.5"}
    assert redacted(shown) == hide({"arguments": shown})["arguments"] == shown
    for secret in ("x", ["x"], True, {"n": 1}, "200"):
        assert redacted({name: secret}) == hide({"arguments": {name: secret}})["arguments"] == {name: MASK}


@pytest.mark.parametrize("name", ["token", "auth_token", "secret_tokens", "tokens_password", "pin"])
def test_a_number_is_hidden_that_may_be_a_secret(name: str):
    assert redacted({name: 7}) == hide({"arguments": {name: 7}})["arguments"] == {name: MASK}


def test_values_that_are_no_text_stay_and_what_is_no_json_is_hidden():
    given_ = {"n": 1, "x": 1.5, "no": None, "yes": True, "list": (1, "a")}
    assert redacted(given_) == {"n": 1, "x": 1.5, "no": None, "yes": True, "list": [1, "a"]}
    assert redacted({"odd": b"bytes", "s": {1, 2}}) == {"odd": MASK, "s": MASK}


def test_the_arguments_themselves_are_not_changed():
    arguments: dict[str, Any] = {"password": "x", "deep": {"token": ["y"]}}
    redacted(arguments)
    assert arguments == {"password": "x", "deep": {"token": ["y"]}}


def test_a_long_name_is_not_kept():
    name = "password" * 1_000
    before = sys.getrefcount(name)
    assert is_secret_name(name)
    assert sys.getrefcount(name) == before


def test_a_copy_is_bounded_however_large_the_arguments_are():
    deep: Any = "bottom"
    for _ in range(2000):
        deep = [deep]
    copy = redacted({"text": "ab " * 1_000_000, "many": list(range(100_000)), "deep": deep})
    assert 990 < len(copy["text"]) <= 1000
    assert len(copy["many"]) <= 1000
    assert len(json.dumps(copy)) < 10_000


def in_list(inner: Any) -> Any:
    return [inner]


def in_object(inner: Any) -> Any:
    return {"in": inner}


@pytest.mark.parametrize("nest", [in_list, in_object])
def test_what_is_nested_in_twelve_levels_is_shown_and_what_is_deeper_is_left_out(nest: Callable[[Any], Any]):
    value: Any = "bottom"
    for _ in range(11):
        value = nest(value)
    assert redacted({"a": value}) == {"a": value}
    assert "bottom" not in json.dumps(redacted({"a": nest(value)}))


def test_a_key_that_is_cut_by_the_bound_is_hidden_all_the_same():
    copy = redacted({"text": "x " * 495 + KEY + KEY})
    assert "sk-" not in copy["text"]


def test_json_in_a_text_of_an_event_is_hidden_by_its_names_as_objects_are():
    shown = hide({"arguments": '{"pin":"1234","n":1}', "text": '\n [{"pin": 7}]', "content": "pin 1234"})
    assert shown == {"arguments": f'{{"pin":"{MASK}","n":1}}', "text": f'[{{"pin":"{MASK}"}}]', "content": "pin 1234"}
    assert hide({"text": '{"n": 1}'}) == {"text": '{"n": 1}'}


def test_json_that_repeats_a_name_has_no_value_that_a_reader_drops():
    assert hide({"text": f'[{{"a":"{KEY}","b":1e9,"a":"x"}}]'}) == {"text": f'[{{"a":"{MASK}","b":1e9,"a":"x"}}]'}
    assert hide({"text": '{"b":{"pin":"hunter2","pin":null}}'}) == {"text": '{"b":{"pin":"•••"}}'}
    assert hide({"text": '{"max_tokens":7,"a":{"max_tokens":"hunter2","max_tokens":7}}'}) == {"text": MASK}
    assert hide({"text": '{"n":1,"m":{"n":2}}'}) == {"text": '{"n":1,"m":{"n":2}}'}


@pytest.mark.parametrize("levels", [300, 600, 2_000], ids=["to be written", "to be searched", "to be read"])
def test_json_that_is_nested_too_deeply_is_masked_as_text(levels: int) -> None:
    text = "[" * levels + '"sk-proj-abcdefghijklmnop"' + "]" * levels
    assert hide({"content": text})["content"] == "[" * levels + f'"{MASK}"' + "]" * levels


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40)
anything = st.recursive(
    texts | st.integers() | st.none() | st.booleans() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(before=texts, after=texts, name=texts, value=anything)
def test_a_key_is_hidden_whatever_stands_around_it(before: str, after: str, name: str, value: Any):
    text = f"{before} {KEY} {after}"
    assert KEY not in masked(text)
    written = json.dumps(redacted({"a": value, name: [{"b": text}, value]}), ensure_ascii=False)
    assert KEY not in written


@given(name=st.sampled_from(NAMES), depth=st.integers(0, 9), beside=anything)
def test_what_stands_under_a_secret_s_name_is_hidden_at_any_depth(name: str, depth: int, beside: Any):
    arguments: Any = {name: "hunter2-hunter2", "beside": beside}
    for level in range(depth):
        arguments = {"in": arguments, "beside": beside} if level % 2 else [arguments]
    written = json.dumps(redacted({"a": arguments}), ensure_ascii=False)
    assert "hunter2" not in written


@pytest.mark.parametrize("between", ["\n", "; ", ". ", " \n", "\n\n"])
@pytest.mark.parametrize(
    "secret", [f"key {KEY}", "password: hunter2", "token:\n  hunter2", "bearer hunter2-hunter2", "mysql --password x-y"]
)
def test_a_long_text_is_masked_as_its_lines_are(secret: str, between: str) -> None:
    line = f"{secret}{between}"
    count = 100_000 // len(line)
    assert masked(line * count) == masked(line) * count


def test_a_key_in_many_lines_is_hidden_whole_and_no_letter_of_a_text_without_ends_is_lost() -> None:
    key = "-----BEGIN KEY-----\n" + f"{'A' * 63}\n" * 1_000 + "-----END KEY-----"
    assert masked(f"a\n{key}\nb") == f"a\n{MASK}\nb"
    for text in ("x" * 50_000, "x " * 25_000, "x\n" * 25_000, f"{'x' * 30_000} {'x' * 30_000}"):
        assert masked(text) == text


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
@pytest.mark.parametrize("text", ["no secret ", "no secret\n", "pwd,", "x"])
def test_a_text_of_megabytes_is_masked_in_parts_so_that_other_threads_run(text: str) -> None:
    parts = [*_pieces(text * (1_000_000 // len(text)))]
    assert "".join(parts) == text * (1_000_000 // len(text))
    assert cpu_seconds(lambda: masked(max(parts, key=len))) < MAX_SECONDS / 2


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
@pytest.mark.parametrize(
    "beginning", ["eyJ-", "-eyJ", "-----BEGIN ", "://a:", " -u a:", "--token-", "Basic A", "ghp_-"]
)
def test_a_text_is_masked_in_a_time_that_grows_with_its_length_only(beginning: str) -> None:
    assert cpu_seconds(lambda: masked(beginning * (40_000 // len(beginning)))) < MAX_SECONDS


@pytest.mark.repeats("it measures CPU time, which tracing multiplies")
@pytest.mark.parametrize(
    "value",
    [["the token: abc, " * 60] * 1_000, {f"{number} {'password ' * 20}": 1 for number in range(1_000)}],
    ids=["texts", "names"],
)
def test_arguments_are_redacted_in_bounded_time_however_many_long_texts_they_have(value: object) -> None:
    assert cpu_seconds(lambda: redacted({"value": value})) < MAX_SECONDS / 2
    assert 10 < len(redacted({"value": value})["value"]) < 200
