"""Descriptions out of docstrings in the three usual styles."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import Field

from toolbus.tools import Tool


def google(city: str, days: int, unit: str = "c") -> None:
    """Forecast the weather.

    Of any city, by name.

    Args:
        city (str): The city's name,
            as people write it: with accents.
        days: How many days.

        unit (Literal["c", "f"], optional): The unit.

    Returns:
        unit: never shown.
    """


def numpy(city: str, days: int, unit: str = "c") -> None:
    """Forecast the weather.

    Of any city, by name.

    Parameters
    ----------
    city : str
        The city's name,
        as people write it: with accents.
    days
        How many days.

    unit : {"c", "f"}, optional
        The unit.

    Returns
    -------
    unit
        Never shown.
    """


def sphinx(city: str, days: int, unit: str = "c") -> None:
    """Forecast the weather.

    Of any city, by name.

    :param city: The city's name,
        as people write it: with accents.
    :param int days: How many days.
    :param unit: The unit.
    :type unit: str
    :returns: never shown.
    """


@pytest.mark.parametrize("function", [google, numpy, sphinx])
def test_every_style_gives_the_same_descriptions(function: Any):
    made = Tool(handler=function)
    assert made.description == "Forecast the weather.\n\nOf any city, by name."
    assert {name: shown["description"] for name, shown in made.parameters["properties"].items()} == {
        "city": "The city's name, as people write it: with accents.",
        "days": "How many days.",
        "unit": "The unit.",
    }


def test_a_field_beats_the_docstring():
    def f(city: Annotated[str, Field(description="From the field.")], days: int) -> None:
        """F.

        Args:
            city: From the docstring.
            days: Days.
        """

    shown = Tool(handler=f).parameters["properties"]
    assert (shown["city"]["description"], shown["days"]["description"]) == ("From the field.", "Days.")


def test_a_given_description_replaces_the_docstrings_but_not_the_parameters():
    made = Tool("weather", "Mine.", handler=google)
    assert (made.name, made.description) == ("weather", "Mine.")
    assert made.parameters["properties"]["unit"]["description"] == "The unit."


def test_without_a_docstring_there_is_no_description():
    def f(x: int) -> None: ...

    made = Tool(handler=f)
    assert made.description == ""
    assert "description" not in made.parameters["properties"]["x"]


def test_what_no_parameter_has_is_ignored():
    def f(x: int) -> None:
        """F.

        Args:
            y: No such parameter.
            *rest: Neither.
        """

    assert Tool(handler=f).parameters["properties"] == {"x": {"type": "integer"}}


def test_keyword_arguments_have_a_section_of_their_own():
    def f(x: int, *, y: int) -> None:
        """F.

        Args:
            x: The first.

        Keyword Args:
            y: The second.

        Side effects go on here.
        """

    made = Tool(handler=f)
    assert made.description == "F."
    assert [shown["description"] for shown in made.parameters["properties"].values()] == ["The first.", "The second."]


def test_a_paragraph_below_a_parameter_belongs_to_nobody_unless_the_section_is_underlined():
    def indented(x: int) -> None:
        """F.

        Args:
            x: The first.

                Another paragraph.
        """

    def underlined(x: int) -> None:
        """F.

        Parameters
        ----------
        x
            The first.

            Another paragraph.
        """

    shown = [Tool(handler=each).parameters["properties"]["x"]["description"] for each in (indented, underlined)]
    assert shown == ["The first.", "The first. Another paragraph."]


def test_text_inside_an_empty_section_belongs_to_nobody():
    def f(x: int) -> None:
        """F.

        Args:
            what is this
        """

    assert Tool(handler=f).parameters["properties"] == {"x": {"type": "integer"}}
