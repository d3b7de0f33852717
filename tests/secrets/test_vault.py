"""A vault keeps what was used last, up to its bounds, and knows whether a reference has left it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from toolbus.secrets import REFERENCE, Vault

VALUE, OTHER = "hunter2-hunter2", "swordfish-1234"


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    def lower(values: int, chars: int) -> None:
        monkeypatch.setattr("toolbus.secrets._vault._MAX_VALUES", values)
        monkeypatch.setattr("toolbus.secrets._vault._MAX_CHARS", chars)

    return lower


def known(vault: Vault, *references: str) -> str:
    """The values of these references that the vault still finds in a text."""
    shown = vault.shown("aaaa bbbb cccc dddd").split()
    return "".join(each[0] for each, now in zip(("a", "b", "c", "d"), shown, strict=True) if now in references)


@pytest.mark.parametrize(("values", "chars"), [(2, 1_000), (1_000, 8)], ids=["values", "characters"])
def test_the_values_that_were_unused_for_longest_are_dropped(
    values: int, chars: int, bounds: Callable[[int, int], None]
) -> None:
    bounds(values, chars)
    vault = Vault()
    a, b = vault.hide("aaaa"), vault.hide("bbbb")
    assert known(vault, a, b) == "ab"
    assert vault.hide("aaaa") == a
    c = vault.hide("cccc")
    assert known(vault, a, b, c) == "ac"
    assert vault.value_of(a) == "aaaa"
    d = vault.hide("dddd")
    assert known(vault, a, b, c, d) == "ad"
    assert [vault.value_of(each) for each in (a, b, c, d)] == ["aaaa", None, None, "dddd"]


def test_a_value_that_is_too_large_for_the_vault_is_kept_as_its_only_one(bounds: Callable[[int, int], None]) -> None:
    bounds(1_000, 12)
    vault = Vault()
    dropped = [vault.hide(each) for each in ("aaaa", "bbbb", "cccc")]
    large = vault.hide("d" * 20)
    assert [vault.value_of(each) for each in (*dropped, large)] == [None, None, None, "d" * 20]


def test_a_text_and_a_number_that_look_alike_have_references_of_their_own() -> None:
    vault = Vault()
    references = vault.hide("12345678"), vault.hide(12345678)
    assert [vault.value_of(each) for each in references] == ["12345678", 12345678]


def test_a_reference_that_is_not_known_stays_inside_a_value() -> None:
    vault = Vault([VALUE])
    mine, unknown = vault.hide(VALUE), "secret:0123456789abcdef"
    assert vault.value_of(vault.hide(f"Basic {mine} {unknown}")) == f"Basic {VALUE} {unknown}"


def test_a_name_with_several_values_stands_for_the_newest_of_them_in_the_vault_of_a_conversation_too() -> None:
    vault, later = Vault((), "c"), Vault([("mail", each) for each in (VALUE, OTHER, VALUE)], "c")
    vault.take_names(later)
    (reference,) = REFERENCE.findall(vault.shown(VALUE))
    assert vault.value_of(reference) == later.value_of(reference) == VALUE
    assert vault.shown(OTHER) == reference


@pytest.mark.parametrize(
    ("method", "value", "given"),
    [
        ("hide", OTHER, True),
        ("shown", f"It is {VALUE}.", True),
        ("shown_json", {"key": VALUE}, True),
        ("shown", "Hello.", False),
        ("shown_json", {"key": "Hello."}, False),
    ],
)
def test_a_vault_is_given_out_with_its_first_reference(method: str, value: Any, given: bool) -> None:
    vault = Vault([VALUE])
    assert not vault.given
    getattr(vault, method)(value)
    assert vault.given is given
    vault.shown("Hello.")
    vault.shown_json(1)
    assert vault.given is given, "it stays so"
