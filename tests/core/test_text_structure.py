"""The structure of a text, line by line: kinds, names, indentation, and the scope that each line belongs to."""

from __future__ import annotations

import pytest

from toolbus.core.text_structure import Scope, is_form, is_prose, is_secondary, read_structure, words_in

TEXTS = {
    "kiln.py": '''"""Firing.

def no_definition():
"""
import time
from a import b
LIMIT: int = 3
'quoted': "value",

# Above the class.
@decorated
class Kiln(Base):
    """One line."""

    heat = call("""
      def inside():
    """)

    async def fire(
        self,
        peak=[1, 2],
    ) -> None:
        """Fire.

        Slowly.
        """
        # A comment.
        if x == 1:
            y = 2
        return """a""" + \'\'\'
text
\'\'\'
    z >= 3
top()
''',
    "gauge.js": "// Notes\nconst needle = 'red'\nexport const poll = async (url) => {\n  return 1\n}\nconst fs = require('fs')\n"
    "export default class Gauge {\n  draw(angle) {\n    if (x) {\n\t  y()\n    }\n  }\n}\n#define SIZE 10\n/* c */\n",
    "lib.rs": "use std::io;\npub(crate) fn soak(minutes: u8) -> u8 {\n    let n = 3;\n    minutes\n}\nimpl Kiln {\n    pub unsafe fn fire(&self) {}\n}\n"
    "func (k *Kiln) Cool() {\n}\n",
    "README.md": "# Kiln\n\nText.\n\n## Soaking ##\nMore.\n### Deep\n\n## Next\n\n# Last\n",
    "notes.rst": "Kiln\n====\n\ntext\n\nSoak\n----\nmore\n\nPeak\n====\n\nshort\n--\n\n* item\n******\n",
}  # fmt: skip


def shown(scopes: list[Scope]) -> list[str]:
    """Each scope as `what name < parent: its lines`; a line as its number, kind, name, indentation and part."""
    found: list[str] = []
    for scope in scopes:
        lines = " ".join(
            f"{line.number}{line.kind[0]}{line.name and f'({line.name})'}{line.indent or ''}"
            f"{'H' if line in scope.head else 'D' if line in scope.doc else ''}"
            for line in scope.lines
        )
        around = f" < {scope.parent.name or '-'}" if scope.parent else ""
        inside = f" [{' '.join(each.name for each in scope.inside)}]" if scope.inside else ""
        found.append(f"{scope.what or '-'} {scope.name or '-'}{around}{inside}: {lines}")
    return found


STRUCTURES = {
    "kiln.py": [
        "- -: 1t 2b 3t 4t 5i 6i 7a(LIMIT) 8a(quoted)",
        "- -: 34c 35b",
        "class Kiln < - [fire]: 10cD 11cD 12d(Kiln)H 13t4D 14bD 15a(heat)4 16t6 17t4 18b 33c4",
        "def fire < Kiln: 19d(fire)4H 20c8H 21a(peak)8H 22c4H 23t8D 24bD 25t8D 26t8D 27c8 28c8 29a(y)12 30t8 31t 32t",
    ],
    "gauge.js": [
        "- -: 1c 2a(needle)",
        "- -: 6i",
        "- -: 15c 16b",
        "function poll < -: 3d(poll)H 4c2 5c",
        "class Gauge < - [draw]: 7d(Gauge)H",
        "function draw < Gauge: 8d(draw)2H 9c4 10c6 11c4 12c2 13c",
        "macro SIZE < -: 14d(SIZE)H",
    ],
    "lib.rs": [
        "- -: 1i",
        "fn soak < -: 2d(soak)H 3a(n)4 4c4 5c",
        "impl Kiln < - [fire]: 6d(Kiln)H",
        "fn fire < Kiln: 7d(fire)4H 8c",
        "func Cool < -: 9d(Cool)H 10c 11b",
    ],
    "README.md": [
        "section Kiln: 1h(Kiln)H 2b 3t 4b",
        "section Soaking < Kiln: 5h(Soaking)H 6t",
        "section Deep < Soaking: 7h(Deep)H 8b",
        "section Next < Kiln: 9h(Next)H 10b",
        "section Last: 11h(Last)H 12b",
    ],
    "notes.rst": [
        "section Kiln: 1h(Kiln)H 2t 3b 4t 5b",
        "section Soak < Kiln: 6h(Soak)H 7t 8t 9b",
        "section Peak: 10h(Peak)H 11t 12b 13t 14t 15b 16t 17t 18b",
    ],
}


@pytest.mark.parametrize("path", TEXTS)
def test_each_line_has_its_kind_and_its_scope(path: str) -> None:
    scopes = read_structure(path, dict(enumerate(TEXTS[path].split("\n"), start=1)))
    assert shown(scopes) == STRUCTURES[path]


@pytest.mark.parametrize(
    ("first", "last", "structure"),
    [
        (2, 8, ["- -: 2b 3t 4t 5i 6i 7a(LIMIT) 8a(quoted)"]),
        (24, 33, ["- -: 24b 25t8 26t8 27c8 28c8 29a(y)12 30t8 31t 32t 33c4"]),
        (14, 17, ["- -: 14b 15a(heat)4 16t6 17t4"]),
        (29, 31, ["- -: 29a(y)12 30t8 31t"]),
        (30, 34, ["- -: 30t8 31t 32t 33c4 34c"]),
        (1, 4, ["- -: 1t 2b 3t 4t"]),
    ],
)
def test_a_part_of_a_file_is_read_as_the_whole_would_be(first: int, last: int, structure: list[str]) -> None:
    lines = dict(enumerate(TEXTS["kiln.py"].split("\n"), start=1))
    assert shown(read_structure("kiln.py", {at: lines[at] for at in range(first, last + 1)})) == structure


def test_the_last_line_of_a_head_belongs_to_it_even_if_it_is_not_indented() -> None:
    [around, scope] = read_structure("a.py", dict(enumerate(["x = 1", "def f(a,", "b):", "    return a", ""], start=1)))
    assert [line.number for line in around.lines] == [1]
    assert [line.number for line in scope.head] == [2, 3]
    assert [line.number for line in scope.lines][:3] == [2, 3, 4]


def test_quotes_within_other_quotes_open_nothing_and_quotes_directly_after_others_do() -> None:
    within, after = "x = \"\"\"it is '''quoted''' here\"\"\"", 'y = """a"""\'\'\'b'
    lines = [
        within,
        "def f():",
        "    pass",
        after,
        "def text():",
        "'''",
        "def g():",
        '    z = """"""',
        "def h():",
        "    pass",
    ]
    scopes = read_structure("a.py", dict(enumerate(lines, start=1)))
    assert [each.name for each in scopes if each.head] == ["f", "g", "h"]


@pytest.mark.parametrize(("length", "names"), [(8, ["Kiln gauge"]), (7, ["Kiln gauge"]), (6, [])])
def test_a_line_under_a_heading_may_be_a_little_shorter(length: int, names: list[str]) -> None:
    scopes = read_structure("a.rst", {1: "Kiln gauge", 2: "-" * length, 3: "It is hot."})
    assert [each.name for each in scopes if each.head] == names


def numbered(path: str, lines: dict[int, str]) -> list[list[int]]:
    return [[line.number for line in each.lines] for each in read_structure(path, lines)]


def test_what_is_outside_of_definitions_is_in_paragraphs_of_five_lines_and_more() -> None:
    five = dict(enumerate(["a", "b", "c", "d", "e", "", "f"], start=1))
    assert numbered("a.txt", five) == [[1, 2, 3, 4, 5], [6, 7]]
    assert numbered("a.txt", {**five, 3: ""}) == [[1, 2, 3, 4, 5, 6, 7]]
    assert numbered("a.py", {1: "x = 1", 2: "def f(): pass", 3: "y = 2"}) == [[1, 3], [2]]
    assert numbered("a.py", {1: "x = 1", 2: "def f():", 3: "    pass", 4: "y = 2"}) == [[1], [4], [2, 3]]


def test_lines_that_are_not_known_end_what_is_open() -> None:
    assert numbered("a.py", {1: "def f():", 2: "    a = 1", 9: "    b = 2"}) == [[1, 2], [9]]
    assert numbered("a.md", {1: "# A", 2: "a", 9: "b"}) == [[1, 2], [9]]


def test_a_signature_ends_within_thirty_lines() -> None:
    for length, head in ((29, 30), (30, 1)):
        text = "def f(\n" + "    a,\n" * (length - 1) + "):\n    pass\n"
        [scope] = read_structure("a.py", dict(enumerate(text.split("\n"), start=1)))
        assert len(scope.head) == head


@pytest.mark.parametrize(
    ("word", "beginning", "is_one"),
    [
        ("limit", "limit", True),
        ("limits", "limit", True),
        ("limited", "limit", True),
        ("limiting", "limit", True),
        ("limiter", "limit", True),
        ("limitation", "limit", True),
        ("limitless", "limit", False),
        ("stopped", "stop", True),
        ("stopper", "stop", True),
        ("stopping", "stop", True),
        ("stopaing", "stop", False),
        ("retries", "retr", True),
        ("ready", "read", True),
        ("lim", "limit", False),
        ("action", "act", True),
        ("user", "us", True),
    ],
)
def test_a_form_is_a_beginning_and_an_ending(word: str, beginning: str, is_one: bool) -> None:
    assert is_form(word, ("no", beginning)) == is_one


def test_identifiers_have_words() -> None:
    assert words_in("getUserName MAX_SIZE HTTPServer2 naïve") == [
        "get",
        "User",
        "Name",
        "MAX",
        "SIZE",
        "HTTP",
        "Server",
        "2",
        "na",
        "ï",
        "ve",
    ]


def test_prose_is_known_by_its_name() -> None:
    assert [
        is_prose(each) for each in ("a.md", "docs/README", "LICENSE.txt", "a.html", "a.py", "md", "readme/a.py")
    ] == [
        True,
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def test_what_shows_a_use_or_a_change_is_secondary_and_a_module_named_history_is_not() -> None:
    use = ("tests/a.py", "unit_tests/a.py", "src/a_test.go", "lib/a_spec.rb", "a.test.ts", "conftest.py", "a.min.js")
    changes = ("HISTORY.md", "docs/changes.rst", "news.txt", "changelog/1.md")
    assert [each for each in (*use, *changes) if not is_secondary(each)] == []
    assert [each for each in ("core/history.py", "app/news.py", "changes.ts", "contest.py") if is_secondary(each)] == []


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("# #", [("# #", "")]),
        ("Last\n====", [("Last", "")]),
        ("# Kiln\nSoak\n====\nPeak\n----\n# Next", [("Kiln", ""), ("Soak", ""), ("Peak", "Soak"), ("Next", "")]),
    ],
)
def test_headings_of_both_forms_have_names_and_levels(text: str, sections: list[tuple[str, str]]) -> None:
    scopes = read_structure("a.md", dict(enumerate(text.split("\n"), start=1)))
    assert [(each.name, each.parent.name if each.parent else "") for each in scopes] == sections
