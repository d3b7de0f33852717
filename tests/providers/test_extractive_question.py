"""What is read from a question: each term with its beginnings and weight, and the kind of line that answers it."""

from __future__ import annotations

import pytest

from toolbus.providers.extractive._question import read_question, stem


def shown(text: str, *earlier: str) -> str:
    """The terms as `text:beginnings:weight`, with a star for an identifier; then what the question wants."""
    question = read_question(text, earlier)
    terms = [
        f"{each.text}:{'|'.join(each.forms)}:{each.weight:g}{'*' if each.identifier else ''}" for each in question.terms
    ]
    wants = ["values"] * question.wants_values + ["consequence"] * question.wants_consequence
    searched = "" if question.searched == question.terms else f"; searched {len(question.searched)}"
    widened = [f"{term.text}:{term.weight:g}" for term in question.widened().terms[len(terms) :]]
    more = f"; widened {' '.join(widened)}" if widened else ""
    return f"{' '.join(terms)}; wants {' '.join(wants) or 'nothing'}{searched}{more}"


@pytest.mark.parametrize(
    ("text", "earlier", "read"),
    [
        (
            "What is the default timeout of socket.create_connection?",
            [],
            "default:default:0.7 timeout:timeout:1 socket:socket:1 create_connection:create_connection:1.5*; wants values; widened create:0.8 connection:0.8",
        ),
        (
            "What happens when the kiln fails to open a file?",
            [],
            "kiln:kiln:1 fails:fail:1 open:open:1 file:file:0.4; wants consequence; searched 3",
        ),
        (
            "which functions does the class `FiringPlan` have, and run()?",
            [],
            "functions:funct:0.4 class:class:0.4 FiringPlan:firingplan:1.5* run:run:1.5*; wants values; searched 2; widened firing:0.8 plan:0.8",
        ),
        ("the functions of the class", [], "functions:funct:0.4 class:class:0.4; wants nothing"),
        ("functions of the kiln vent", [], "functions:funct:0.4 kiln:kiln:1 vent:vent:1; wants nothing; searched 2"),
        (
            "what is in src/app.js and package.json",
            [],
            "src/app.js:src/app.js:1.2 package.json:package.json:1.2; wants nothing",
        ),
        (
            "HTTPS or URLs, parseHTTPHeader_v2 and GzipFile",
            [],
            "https:https:1 urls:url:1 parseHTTPHeader_v2:parsehttpheader_v2:1.5* GzipFile:gzipfile:1.5*; wants nothing; widened parse:0.8 http:0.8 header:0.8 gzip:0.8 file:0.8",
        ),
        (
            "the --dry-run flag and -x 3.5 of a _private __init__",
            [],
            "dry:dry:1 run:run:0.4 flag:flag:1 3:3:1 5:5:1.5* _private:_private:1.5* __init__:__init__:1.5*; wants nothing; searched 6; widened private:0.8 init:0.8",
        ),
        (
            "the warnings module, other warnings and warts",
            [],
            "warnings:warn:1.4 module:modul:0.4 warts:wart:1; wants nothing; searched 2",
        ),
        (
            "configuration directories of the database",
            [],
            "configuration:configur|config:1 directories:directory|directori|dir:1 database:databas|db:1; wants nothing",
        ),
        ("how long is it, does Kiln know Kiln?", [], "Kiln:kiln:1.5*; wants values"),
        (
            "and copper?",
            ["red apples and maximum pears"],
            "copper:copper:1 red:red:0.5 apples:appl:0.5 maximum:maximum|max:0.5 pears:pear:0.5; wants nothing",
        ),
        (
            "how is it smelted in copper ovens",
            ["red apples"],
            "smelted:smelt:1 copper:copper:1 ovens:oven:1 red:red:0.5 apples:appl:0.5; wants nothing",
        ),
        (
            "how is ore smelted in copper ovens now",
            ["red apples"],
            "ore:ore:1 smelted:smelt:1 copper:copper:1 ovens:oven:1; wants nothing",
        ),
        ("ore copper", ["red apples"], "ore:ore:1 copper:copper:1; wants nothing"),
        (
            "it melts ore in copper vents",
            ["red apples", "green"],
            "melts:melt:1 ore:ore:1 copper:copper:1 vents:vent:1; wants nothing",
        ),
        ("a b 7 x_y _id", [], "7:7:1 x_y:x_y:1.5* _id:_id:1.5*; wants nothing; widened id:0.8"),
        (
            "one two three four five six seven eight nine ten kiln soak peak vent limit glaze copper ore apple pear plum fig",
            [],
            "two:two:1 three:thre:1 four:four:1 five:five:1 six:six:1 seven:seven:1 eight:eight:1 nine:nine:1 ten:ten:1 kiln:kiln:1 soak:soak:1 peak:peak:1 vent:vent:1 limit:limit:1 glaze:glaz:1 copper:copper:1; wants values",
        ),
        (
            "maxSize getMaxSizeOf",
            [],
            "maxSize:maxsize:1.5* getMaxSizeOf:getmaxsizeof:1.5*; wants nothing; widened max:0.8 size:0.8 get:0.8",
        ),
        ("errors of ABc and ABcd", [], "errors:error:1 abc:abc:1 ABcd:abcd:1.5*; wants consequence; widened bcd:0.8"),
        (
            "and copper?",
            ["red functions of the class Kiln"],
            "copper:copper:1 red:red:0.5 functions:funct:0.2 class:class:0.2 Kiln:kiln:0.75*; wants nothing; searched 3",
        ),
        (
            "what does the module kiln and method soaks do",
            [],
            "module:modul:0.4 kiln:kiln:1 method:method:0.4 soaks:soak:1; wants nothing; searched 2",
        ),
    ],
)
def test_a_question_is_read(text: str, earlier: list[str], read: str) -> None:
    assert shown(text, *earlier) == read


@pytest.mark.parametrize(
    ("word", "beginnings"),
    [
        ("is", ("is",)),
        ("yes", ("yes",)),
        ("gas", ("gas",)),
        ("uses", ("use",)),
        ("boss", ("boss",)),
        ("bus", ("bus",)),
        ("basis", ("basis",)),
        ("retries", ("retry", "retri")),
        ("ties", ("tie",)),
        ("lies", ("lie",)),
        ("dries", ("dry",)),
        ("passes", ("pass",)),
        ("boxes", ("box",)),
        ("watches", ("watch",)),
        ("dishes", ("dish",)),
        ("buzzes", ("buzz",)),
        ("apples", ("appl",)),
        ("cats", ("cat",)),
        ("only", ("only",)),
        ("ready", ("ready", "readi")),
        ("days", ("day",)),
        ("happy", ("happy", "happi")),
        ("obey", ("obey",)),
        ("play", ("play",)),
        ("easily", ("easily", "easili")),
        ("handling", ("handl",)),
        ("handled", ("handl",)),
        ("handle", ("handl",)),
        ("stopping", ("stop",)),
        ("stopped", ("stop",)),
        ("running", ("running", "run")),
        ("falling", ("fall",)),
        ("fallen", ("fallen",)),
        ("passing", ("pass",)),
        ("buzzed", ("buzz",)),
        ("connection", ("connect",)),
        ("connections", ("connect",)),
        ("station", ("station",)),
        ("action", ("action",)),
        ("compression", ("compress",)),
        ("nation", ("nation",)),
        ("ration", ("ration",)),
        ("speed", ("speed",)),
        ("breed", ("breed",)),
        ("sing", ("sing",)),
        ("string", ("string",)),
        ("reed", ("reed",)),
        ("red", ("red",)),
        ("tree", ("tree",)),
        ("agree", ("agre",)),
        ("decided", ("decid",)),
        ("decide", ("decid",)),
        ("size", ("size",)),
        ("ages", ("age",)),
        ("rated", ("rated",)),
        ("planning", ("plan",)),
        ("plan", ("plan",)),
        ("added", ("added",)),
        ("using", ("using",)),
    ],
)
def test_the_beginnings_of_a_words_forms(word: str, beginnings: tuple[str, ...]) -> None:
    assert stem(word) == beginnings
