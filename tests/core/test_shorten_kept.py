"""The exact texts that `shorten` and `page` make, by their checksums.

A request that is resumed, in this process or another one, sends its model the same texts again, so that the vendor's
cache still holds. If a checksum changes, the change was made on purpose: read the new texts, and write it down.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import pytest

from toolbus.core.shorten import page, shorten

VALUES: dict[str, Any] = {
    "rows": [{"id": n, "name": f"row {n}", "tags": ["a", "b"][: n % 3]} for n in range(40)],
    "keys": {f"key {n}": n * 0.5 for n in range(60)},
    "deep": {
        "a": {"b": {f"c{n}": ["x" * n, {"d": None}] for n in range(9)}},
        "e": [[[1, True]] * 3] * 12,
        "f": "y" * 90,
    },
    "texts": ["é" * 70, "z" * 400, '"' * 40, "", {}, []],
    "marks as keys": {"...": 1, "... 2": "x" * 300, "k" * 150: [7] * 20, "last": "w" * 33},
    "numbers": [10**n for n in range(0, 60, 3)] + [False, None, -1.5],
    "around the steps": {
        **{f"t{n}": "x" * n for n in (32, 33, 48, 49, 64, 65)},
        **{f"n{n}": int("1" * n) for n in (30, 31, 32, 33, 48, 49, 64, 65)},
        "...": "x" * 500,
    },
    "long keys": {"k" * n: {"m" * n: n} for n in range(10, 80, 9)},
}
JSON = {
    "rows": 3827075578,
    "keys": 1580809605,
    "deep": 2233535291,
    "texts": 4140119338,
    "marks as keys": 3509723626,
    "numbers": 3493282320,
    "around the steps": 3178023626,
    "long keys": 3263601113,
}
WORDS = "word " * 100
NO_NUMBERS = f"[NaN, {'1,' * 200}1]", f'{{"a": Infinity, "b": "{"x" * 300}"}}'
DIGITS = tuple(f"[{'1' * n}{',2' * 100}]" for n in (19, 18))
ODD = (
    NO_NUMBERS[0],
    *DIGITS,
    NO_NUMBERS[1],
    f'["\\ud800", "{"x" * 300}"]',
    "[" * 2000,
    f"{' ' * 10}[1{', 1' * 99}]",
    f'"{"x" * 300}"',
)


def checksum(texts: Iterator[str]) -> int:
    return crc32("\x1e".join(texts).encode("utf-8", "surrogatepass"))


def called(bound: int) -> str:
    return "r_0_0" if bound % 2 else ""


@pytest.mark.parametrize("name", VALUES)
def test_json_is_shortened_as_it_was_at_every_bound(name: str):
    content = json.dumps(VALUES[name], ensure_ascii=False)
    bounds = range(195, min(len(content) + 2, 700), 5)
    assert checksum(shorten(content, bound, called(bound)) for bound in bounds) == JSON[name]


def test_other_texts_are_shortened_and_paged_as_they_were():
    assert checksum(shorten(WORDS, bound, called(bound)) for bound in range(194, 503, 3)) == 3486500341
    ids = (("i" * size, bound) for size in range(20, 90, 2) for bound in (200, 201, 300))
    assert checksum(shorten(WORDS * 4, bound, call_id) for call_id, bound in ids) == 4116235566
    places = ((offset, size) for offset in (0, 1, 250, 499, 500, 501) for size in (0, 200, 201, 300))
    assert checksum(page(WORDS, offset, size) for offset, size in places) == 899948332
    assert checksum(shorten(text, 200, "c") for text in ODD) == 2016990482
