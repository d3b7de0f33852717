"""The soak's own parts: which changes it makes, which tests it runs for them, what it tells."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from soak import __main__ as soak
from soak import mutating, mutations, parts, recording
from soak.mutants import Mutant, mutants_of, mutated, users_of
from soak.mutating import Job, jobs_for
from soak.parts import HOSTILE, Outcome, Time, run_recording
from soak.recording import PLACE, ROOT, Record, likeness, line_key, stale_files

SOURCE = textwrap.dedent('''
    """A text of 1 module."""
    from typing import TYPE_CHECKING, TypeAlias
    if TYPE_CHECKING:
        import os
    __all__ = ["work"]
    Name: TypeAlias = str
    MOST = 3
    SECONDS = 600
    CODES = {429, 2**16}

    class Work(Protocol):
        def work(self, most: int = 4) -> int:
            """Work up to 4 times."""
            ...

    class Worker:
        """It has 2 hands."""

        done: int = 0

        def work(self, items: list[int], most: int = MOST) -> int:
            """Work on 1 item after the other."""
            assert items is not None
            while items and len(items) < 9:
                self.done += items.pop()
                del self.left
                for pair in zip(items, items[:80], strict=True):
                    del pair
                late = len(items) < SECONDS < monotonic() or len(items) >= 60
                _logger.info("done %d", 1)
                notify(self)
            if self.stops:
                return False
            for item in items:
                if not item:
                    continue
                raise ValueError(f"{item + 1} is left")
            return min(self.done, most)

        def __repr__(self):
            return f"<Worker of {self.done + 1}>"
''')
CHANGES = {
    "3 -> 4",
    "0 -> 1",
    "429 -> 430",
    "2 -> 3",
    "16 -> 17",
    "del self.left -> pass",
    "if self.stops: -> if not self.stops:",
    "False -> True",
    "len(items) < SECONDS < monotonic() or len(items) >= 60 -> len(items) < SECONDS < monotonic() and len(items) >= 60",
    "while items and len(items) < 9: -> if items and len(items) < 9:",
    "items and len(items) < 9 -> items or len(items) < 9",
    "len(items) < 9 -> len(items) <= 9",
    "9 -> 10",
    "self.done += items.pop() -> self.done -= items.pop()",
    "self.done += items.pop() -> pass",
    "notify(self) -> pass",
    "if not item: -> if not not item:",
    "not item -> item",
    "continue -> break",
    "raise ValueError(f'{item + 1} is left') -> pass",
    "return min(self.done, most) -> return None",
    "min -> max",
}


def test_each_change_is_made_once_and_what_only_people_read_is_left_as_it_is():
    found = mutants_of(SOURCE, "toolbus/x.py")
    assert sorted(f"{each.before} -> {each.after}" for each in found) == sorted(CHANGES)
    assert [each.number for each in found] == [*range(len(found))]


@pytest.mark.parametrize("mutant", mutants_of(SOURCE, "toolbus/x.py"), ids=lambda each: each.kind)
def test_a_mutant_is_the_module_with_this_one_change(mutant: Mutant):
    whole = ast.unparse(ast.parse(SOURCE)).splitlines()
    changed = ast.unparse(mutated(SOURCE, mutant)).splitlines()
    compile(mutated(SOURCE, mutant), "x.py", "exec")
    differ = [(one, other) for one, other in zip(whole, changed, strict=True) if one != other]
    assert len(differ) == 1
    assert mutant.before.partition("\n")[0] in differ[0][0]
    assert ast.unparse(mutated(SOURCE, None)).splitlines() == whole


def test_a_change_knows_its_function_and_outside_of_functions_the_names_that_it_binds():
    known = {each.before: (each.where, each.names) for each in mutants_of(SOURCE, "toolbus/x.py")}
    assert known["9"][0] == "Worker.work"
    assert known["3"] == ("", ("MOST",))
    assert known["0"] == ("Worker.", ("done",))
    assert users_of(SOURCE, ["done"]) == {"Worker.work"}


def test_a_loop_that_is_left_from_within_stays_a_loop():
    source = "while a():\n    if b():\n        break\nwhile a():\n    for each in b():\n        break\n"
    assert [each.line for each in mutants_of(source, "x.py") if each.kind == "while"] == [4]


def test_whether_a_large_bound_is_included_is_not_changed():
    source = "MOST, FEW = 1_000, 3\nBIG = 2 * 10\ndef f(a):\n    return (a < MOST, a < FEW, a < BIG, a < 10, a < 9)\n"
    found = [each.before for each in mutants_of(source, "x.py") if each.kind.startswith("comparison")]
    assert found == ["a < FEW", "a < 9"]


def test_a_large_bound_is_not_changed_also_if_one_statement_binds_several():
    found = mutants_of("A, B = 1_000, 3\nC = [1_000, 3]\nA, B = [2_000, f(3_000)]\n", "x.py")
    numbers = [each for each in found if each.before.isdecimal()]
    assert [(each.line, each.before) for each in numbers] == [(1, "3"), (2, "1000"), (2, "3")]


def test_what_only_people_read_of_a_field_is_not_changed():
    found = mutants_of("class A:\n    b: int = field(default=1, repr=False, compare=False)\n", "x.py")
    assert [(each.before, each.after) for each in found] == [("1", "2"), ("False", "True")]


# ------------------------------------------------------------------------------------------------ which tests


def test_the_cheapest_tests_that_run_the_changed_line_come_first_those_of_each_file_in_turn():
    [nine] = [each for each in mutants_of(SOURCE, "toolbus/x.py") if each.before == "9"]
    line = line_key("toolbus/x.py", "Worker.work", "while items and len(items) < 9:")
    other = line_key("toolbus/x.py", "Worker.work", "notify(self)")
    seconds = {"a.py::slow": 3.0, "a.py::quick": 0.1, "b.py::other": 0.2, "c.py::quick": 0.3}
    ran = ["a.py::slow", "a.py::quick", "c.py::quick"]
    [job] = jobs_for([nine], Record({}, seconds, {line: ran, other: ["b.py::other"]}))
    assert job.tests == ["a.py::quick", "c.py::quick", "a.py::slow"]
    slower = {**seconds, "a.py::slower": 20.0}
    [job] = jobs_for([nine], Record({}, slower, {line: [*ran, "a.py::slower"], other: ["b.py::other"]}))
    assert job.tests == ["a.py::quick", "c.py::quick", "a.py::slow", "a.py::slower"]
    assert job.longest == 20.0
    [mutant] = [each for each in mutants_of(SOURCE, "toolbus/core/turn/x.py") if each.before == "9"]
    line = line_key(mutant.path, "Worker.work", "while items and len(items) < 9:")
    near = ["tests/core/turn/test_x.py::a", "tests/core/turn/test_x.py::b"]
    far = [f"tests/bus/test_{each}.py::a" for each in range(20)]
    [job] = jobs_for(
        [mutant], Record({}, {**dict.fromkeys(near, 15.0), **dict.fromkeys(far, 0.5)}, {line: [*far, *near]})
    )
    assert [job.tests.index(each) for each in near] == [5, 6], "after the first few, those of the mirrored folder"
    [job] = jobs_for(
        [nine], Record({}, seconds, {line_key(nine.path, nine.where, nine.text): ran[:1], other: ["b.py::other"]})
    )
    assert {*job.tests} == {"a.py::slow", "b.py::other"}, "where few are seen on the line, those of its file too"
    seen = [f"d.py::{number}" for number in range(20)]
    newer = Record(
        {}, {**seconds, **dict.fromkeys(seen, 0.1)}, {line_key(nine.path, nine.where, nine.text): ran, other: seen}
    )
    [job] = jobs_for([nine], newer)
    assert {*job.tests} == {*ran, *seen}, "where most tests of the function are not seen on the line, these too"
    [job] = jobs_for([nine], Record({}, seconds, {other: ["b.py::other"]}))
    assert job.tests == ["b.py::other"], "where nobody is seen on the line, whoever runs its function"
    [default] = [each for each in mutants_of(SOURCE, "toolbus/core/x.py") if each.where == "Worker."]
    seconds = dict.fromkeys(["tests/core/test_x.py::a", "tests/core/turn/test_y.py::a", "tests/bus/test_z.py::a"], 0.1)
    [job] = jobs_for([default], Record({}, seconds, {}))
    assert job.tests == ["tests/core/test_x.py::a", "tests/core/turn/test_y.py::a"], "a test may only read a default"
    api = [f"{mutating._API}[toolbus.{name}]" for name in ("core", "core.x", "bus")]  # pyright: ignore[reportPrivateUsage]
    [job] = jobs_for([default], Record({}, dict.fromkeys(api, 0.1), {}))
    assert {*job.tests} == {*api[:2]}, "its default may be a public one"
    bound = mutants_of("_MOST = 3\n", "toolbus/core/__init__.py")
    page = [f"{mutating._PAGE}[core.{name}]" for name in ("_MOST", "_LEAST")]  # pyright: ignore[reportPrivateUsage]
    [job] = jobs_for(bound, Record({}, dict.fromkeys(page, 0.1), {}))
    assert job.tests == page[:1], "the page of bounds may state it"


def test_a_test_that_is_named_like_the_line_comes_before_cheaper_ones(monkeypatch: pytest.MonkeyPatch):
    key = line_key("toolbus/runtime/_models.py", "Models.narrator", "return given")
    named, other = "tests/status/test_request_status.py::test_a_narrator_writes[asyncio]", "tests/bus/test_bus.py::a"
    assert (likeness(key, named), likeness(key, other)) == (1, 0)
    [mutant] = mutants_of(
        "class Models:\n    def narrator(self):\n        return given\n", "toolbus/runtime/_models.py"
    )
    few = {f"tests/bus/test_{number}.py::test_one": 0.02 for number in range(5)}
    record = Record({}, {**few, other: 0.1, named: 0.3}, {key: [*few, other, named]})
    assert next(jobs_for([mutant], record)).tests == [*few, named, other]
    monkeypatch.setattr(recording, "_MAX_TESTS", 2)
    monkeypatch.setattr(recording, "_OWN_TESTS", 0)
    assert record._chosen(key, record.seconds)[0] == named  # pyright: ignore[reportPrivateUsage]


def test_a_seed_gives_the_same_mutants_in_the_same_order():
    every = mutants_of(SOURCE * 3, "toolbus/x.py")
    first, again, other = (mutations.picked(every, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert {*first} == {*every}


def test_the_share_counts_hangs_as_noticed_and_leaves_out_what_is_known_to_be_equivalent():
    one, three, four, five, six, *_ = mutants_of(SOURCE, "toolbus/x.py")
    known = mutations.Equivalents({(five.path, five.where, five.before, five.after, ""): "for a reason"})
    tally = mutations.Tally(known)
    tally.add(Job(one, [], verdict="noticed", by=["a.py::fit"]))
    tally.add(Job(three, [], verdict="survived"))
    tally.add(Job(four, [], verdict="stood still"))
    tally.add(Job(five, [], verdict="survived"))
    tally.add(Job(six, []))
    outcome = tally.outcome()
    assert outcome.summary == "2 of 3 noticed (66.7%; 1 stood still), 1 known to be equivalent"
    [problem] = outcome.problems
    assert [line for line in problem.splitlines() if "src/" in line] == [f"src/{three}  (survived, 0 tests)"]
    tally.jobs[3].verdict = "noticed"
    tally.jobs[3].by = ["a.py::fit"]
    assert "says 'for a reason' of" in tally.outcome().problems[0]


def test_a_soak_that_had_no_time_to_try_a_change_says_so_and_reports_no_share():
    untried, *_ = mutants_of(SOURCE, "toolbus/x.py")
    tally = mutations.Tally(mutations.Equivalents({}), [Job(untried, [])])
    assert tally.outcome() == Outcome("no change was tried in this time; give it more --minutes")


def test_a_record_survives_its_file_and_forgets_tests_that_are_gone(tmp_path: Path):
    here, gone = "tests/test_soak.py::test_one", "tests/no_such_file.py::test_two"
    record = Record(
        {"tests/test_soak.py": "old"}, {here: 0.5, gone: 1.0}, {"a.py:f|x": [here, gone], "a.py:f|y": [gone]}
    )
    record.write(tmp_path / "tests.json")
    record = Record.read(tmp_path / "tests.json")
    assert record.lines == {"a.py:f|x": [here, gone], "a.py:f|y": [gone]}
    stale = stale_files(record, [ROOT / "tests" / "test_soak.py"])
    assert [*stale] == ["tests/test_soak.py"]
    (tmp_path / "new").mkdir()
    line = json.dumps([here, 0.25, ["a.py:g|z"]])
    (tmp_path / "new" / "1.jsonl").write_text(f"{line}\n[{line[:9]}")
    record.renew(stale, tmp_path / "new", whole=False)
    assert (record.seconds, record.lines) == ({here: 0.5}, {"a.py:f|x": [here]}), "the process was busy with that file"
    record.renew(stale, tmp_path / "new", whole=True)
    assert (record.seconds, record.lines) == ({here: 0.25}, {"a.py:g|z": [here]})
    assert stale_files(record, [ROOT / "tests" / "test_soak.py"]) == {}
    record.files.clear()
    failed = json.dumps(["tests/test_soak.py::test_of_a_busy_machine", None, []])
    (tmp_path / "new" / "1.jsonl").write_text(f"{line}\n{failed}\n")
    record.renew(stale, tmp_path / "new", whole=True)
    assert (record.seconds, record.files) == ({here: 0.25}, {}), "a file with a test that has failed is recorded again"
    assert Record.read(tmp_path / "nowhere.json") == Record()


def test_of_a_line_that_many_tests_run_those_of_its_own_folder_are_kept_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recording, "_OWN_TESTS", 2)
    monkeypatch.setattr(recording, "_MAX_TESTS", 4)
    own = {"tests/core/test_a.py::slow": 9.0, "tests/core/test_a.py::quick": 1.0, "tests/core/turn/test_b.py::one": 5.0}
    others = {"tests/bus/test_c.py::one": 0.1, "tests/bus/test_c.py::two": 0.2, "tests/bus/test_d.py::one": 0.3}
    record = Record({}, {**others, **own})
    chosen = record._chosen("toolbus/core/turn/x.py:f|x / y", record.seconds)  # pyright: ignore[reportPrivateUsage]
    assert chosen == [
        "tests/core/turn/test_b.py::one",
        "tests/core/test_a.py::quick",
        "tests/bus/test_c.py::one",
        "tests/bus/test_d.py::one",
    ]


def test_a_test_is_recorded_with_the_lines_that_it_runs_also_in_threads_and_within_expressions(tmp_path: Path):
    (tmp_path / "test_here.py").write_text(
        "import threading\nimport pytest\nfrom toolbus.core.backoff import backoff_seconds\n"
        "def test_one():\n"
        "    thread = threading.Thread(target=backoff_seconds, args=(1, 'a'))\n    thread.start()\n    thread.join()\n"
        "@pytest.mark.parametrize('number', [10**5_000], ids=['of more digits than Python converts'])\n"
        "def test_two(number): assert False\n"
        "def test_in_another_process():\n"
        "    import os, subprocess, sys\n"
        "    program = 'import os; from toolbus.core.backoff import backoff_seconds as b; b(1, chr(97)); os._exit(0)'\n"
        "    subprocess.run([sys.executable, '-c', program], check=True)\n"
        "@pytest.mark.parametrize('anyio_backend', ['asyncio', 'trio'])\n"
        "def test_three(anyio_backend): pass\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), PLACE: str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "soak.recording", "-p", "no:cacheprovider", "test_here.py"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True)
    [part] = tmp_path.glob("*.jsonl")
    [(key, seconds, ran), failed, (other, *_), (last, *_)] = map(json.loads, part.read_text().splitlines())
    assert key.endswith("test_here.py::test_one")
    assert failed[1:] == [None, []]
    assert last.endswith("test_here.py::test_three[asyncio]"), "the run on trio is left out"
    assert 0 < seconds < 60
    text = "return longest * (0.5 + crc32(seed.encode()) / 2**33)"
    line = line_key("toolbus/core/backoff.py", "backoff_seconds", f"    {text}\n")
    assert line in ran
    record = Record()
    record.renew({"test_here.py": "0"}, tmp_path, whole=True)
    assert record.lines[line] == ([key, other] if hasattr(sys, "monitoring") else [key])


def test_tests_that_cannot_be_run_are_a_problem_and_no_lack_of_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    within = Time(time.monotonic() + 60)
    monkeypatch.setattr(parts, "_JOBS", 1)  # several would take longer to start
    with pytest.raises(RuntimeError, match="no tests ran"):
        run_recording(["tests/nowhere.py"], str(tmp_path), within)

    def crash(_given: Time) -> Record:
        raise RuntimeError("the plugin crashed")

    monkeypatch.setattr(mutations, "record_of_tests", crash)
    outcome = mutations.mutations(1, within)
    assert (outcome.summary, outcome.problems) == ("the tests could not be recorded", ["the plugin crashed"])


def test_each_entry_of_the_known_equivalents_is_a_change_that_there_is():
    known = mutations.Equivalents.read().known
    assert all(known.values()), "each says why"
    lines: dict[tuple[str, str, str, str], set[str]] = {}
    for path in {path for path, *_ in known}:
        for each in mutants_of((ROOT / "src" / path).read_text(encoding="utf-8"), path):
            lines.setdefault((path, each.where, each.before, each.after), set()).add(each.text.strip())
    entries = [((path, where, before, after), line) for path, where, before, after, line in known]
    assert [(change, line) for change, line in entries if line not in {"", *lines.get(change, ())}] == []
    assert [change for change, _ in entries if change not in lines] == []
    assert [change for change, line in entries if not line and len(lines[change]) > 1] == [], "each needs its line"


def test_a_known_equivalent_hides_no_other_change(tmp_path: Path):
    nine, ten = (each for each in mutants_of(SOURCE, "toolbus/x.py") if each.before in ("9", "3"))
    path = tmp_path / "equivalent.toml"
    path.write_text(
        f"[[mutant]]\npath = '{nine.path}'\nwhere = '{nine.where}'\nbefore = '{nine.before}'\nafter = '{nine.after}'\n"
        "why = 'nobody has so many'\n"
    )
    known = mutations.Equivalents.read(path)
    assert (known.why(nine), known.why(ten)) == ("nobody has so many", None)
    elsewhere = dataclasses.replace(nine, text="return 9")
    assert known.why(elsewhere) == "nobody has so many"
    path.write_text(f"{path.read_text(encoding='utf-8')}line = '{nine.text.strip()}'\n")
    known = mutations.Equivalents.read(path)
    assert (known.why(nine), known.why(elsewhere)) == ("nobody has so many", None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="mutants are run in forked processes")
def test_changes_are_noticed_by_the_tests_that_run_them_and_survive_others(tmp_path: Path):
    """In a process of its own, since this one has imported toolbus."""
    program = textwrap.dedent("""
        import sys, time
        from soak.mutants import mutants_of
        from soak.mutating import Job, preload, run_jobs
        from soak import mutating, running
        from soak.recording import SOURCES
        running._TEST_SECONDS = 4.0  # longer than a machine stands still
        mutating._OTHERS = ("anyio trio",)  # what these tests need: importing all of it takes 6 s
        preload()
        def change(path, kind, where):
            every = mutants_of((SOURCES / path).read_text(), path)
            return next(each for each in every if each.kind == kind and each.where.startswith(where))
        mutant = change("toolbus/core/backoff.py", "return", "backoff")
        outside = change("toolbus/core/backoff.py", "constant", "")
        test = "tests/test_one.py::test_{}".format
        jobs = [
            Job(mutant, [test("passing"), test("noticing")]),
            Job(mutant, [test("passing")]),
            Job(mutant, []),
            Job(None, [test("passing"), test("noticing")]),
            Job(mutant, [test("gone")]),
            Job(mutant, [test("starting_another")]),
            Job(outside, [test("passing"), test("of_a_constant")]),
            Job(outside, [test("passing")]),
            Job(mutant, [test("of_a_value_made_at_import")]),
            Job(mutant, [test("failing")]),
            Job(mutant, [test("standing_still"), test("passing")]),
            Job(mutant, [test("standing_still_if_changed")]),
        ]
        for job in jobs[:-2]:
            job.longest = 10.0  # none of these is ended, however busy the machine is
        unfit = set()
        for job in run_jobs(jobs, time.monotonic() + 200, 2, unfit):
            print(jobs.index(job), job.verdict, *job.by)
        print("unfit", *sorted(unfit))
    """)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text(
        "import subprocess, sys, threading\n"
        "from toolbus.core import backoff\n"
        "from toolbus.core.backoff import backoff_seconds\n"
        "MADE = backoff_seconds(1, 'a')\n"
        "def test_passing(): pass\n"
        "def test_noticing(): assert backoff_seconds(1, 'a') is not None\n"
        "def test_of_a_constant(): assert backoff._FIRST_SECONDS == 0.5\n"
        "def test_of_a_value_made_at_import(): assert MADE is not None\n"
        "def test_failing(): assert False\n"
        "def test_standing_still(): threading.Event().wait()\n"
        "def test_standing_still_if_changed(): backoff_seconds(1, 'a') is not None or threading.Event().wait()\n"
        "def test_starting_another():\n"
        "    program = 'from toolbus.core.backoff import backoff_seconds as b; assert b(1, chr(97)) is not None'\n"
        "    subprocess.run([sys.executable, '-c', program], check=True)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert sorted(done.stdout.splitlines()) == [
        "0 noticed tests/test_one.py::test_noticing",
        "1 survived",
        "10 survived",
        "11 stood still tests/test_one.py::test_standing_still_if_changed",
        "2 no test",
        "3 survived",
        "4 no test",
        "5 noticed tests/test_one.py::test_starting_another",
        "6 noticed tests/test_one.py::test_of_a_constant",
        "7 survived",
        "8 noticed tests/test_one.py::test_of_a_value_made_at_import",
        "9 no test",
        "unfit tests/test_one.py::test_failing tests/test_one.py::test_standing_still",
    ], done.stderr


def test_all_changes_of_a_package_a_module_or_a_line_can_be_chosen():
    package, module = (mutations.all_mutants([at]) for at in ("core/turn", "core/turn/_repeats.py"))
    assert {each.path for each in module} == {"toolbus/core/turn/_repeats.py"} < {each.path for each in package}
    assert all(each.path.startswith("toolbus/core/turn/") for each in package)
    line = module[0].line
    assert mutations.all_mutants([f"_repeats.py:{line}"]) == [each for each in module if each.line == line]


def test_the_table_ranks_packages_by_what_nobody_has_noticed_and_modules_if_there_is_one_package():
    def jobs(path: str, *verdicts: str) -> list[Job]:
        found = mutants_of(SOURCE, path)
        return [Job(found[at], [], verdict=each) for at, each in enumerate(verdicts)]  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    tally = mutations.Tally(mutations.Equivalents({}), jobs("a/x.py", "noticed", "no test", "not run"))
    tally.jobs += jobs("a/y.py", "survived", "survived")
    assert tally.table().split("\n") == [
        "     2 of     2 not noticed in a/y.py",
        "     1 of     2 not noticed in a/x.py",
    ]
    tally.jobs += jobs("b/z.py", "stood still")
    assert tally.table().split("\n") == ["     3 of     4 not noticed in a", "     0 of     1 not noticed in b"]


# ------------------------------------------------------------------------------------------------ what is told


def test_parts_share_the_time_and_one_that_failed_says_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    had: dict[str, tuple[int, float]] = {}

    def part(name: str, *problems: str):
        def run(seed: int, given: Time) -> Outcome:
            had[name] = (seed, given.left)
            return Outcome(f"did {name}", [*problems])

        return run

    monkeypatch.setattr(soak, "PARTS", {"hostile": part("hostile"), "simulation": part("simulation", "seed 7 broke")})
    assert soak.main(["--only", "hostile,simulation", "--minutes", "40"]) == 1
    assert had["hostile"][1] == pytest.approx(600, abs=30)
    assert had["simulation"][1] == pytest.approx(2_400, abs=60), "what the first one has left is the second one's"
    reported = capsys.readouterr().out
    assert "seed 7 broke" in reported
    assert f"again: python3 dev.py soak --only simulation --seed {had['simulation'][0]}" in reported
    assert [line.split()[:2] for line in reported.splitlines() if line.startswith(("ok", "FAILED"))] == [
        ["ok", "hostile"],
        ["FAILED", "simulation"],
    ]
    seeds = [seed for seed, _ in had.values()]
    assert soak.main(["--only", "hostile", "--seed", "4711"]) == 0
    assert had["hostile"][0] == 4711
    assert len({*seeds, 4711}) == 3


@pytest.mark.parametrize("arguments", [["--only", "nothing"], ["--minutes", "0"], ["--minutes", "inf"]])
def test_what_cannot_be_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        soak.main(arguments)
    assert caught.value.code == 2
    assert "error: argument" in capsys.readouterr().err


@pytest.mark.parametrize("pattern", HOSTILE)
def test_each_pattern_of_the_hostile_tests_finds_files(pattern: str) -> None:
    """Files of three patterns had moved, and were left out without a word."""
    assert [*ROOT.glob(pattern)]
