"""Processes that tests fork: they have files of their own, they end as a program ends, and none outlives its test process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import forked_programs
import psutil

from support import forked

TESTS = Path(__file__).parent.parent

ENDS_WITHOUT_A_WORD = """
import sys, time
sys.path += [{tests!r}, {here!r}]
import forked_programs
from support import forked

process = forked.Process(forked_programs.hang)
process.stdout.readline()
print(process.pid, flush=True)
time.sleep(600)
"""


def test_a_forked_process_has_its_own_input_and_output():
    with forked.Process(forked_programs.echo) as one, forked.Process(forked_programs.echo) as other:
        one.stdin.write(b"one\n")
        other.stdin.write(b"other\n")
        assert (one.stdout.read(), other.stdout.read()) == (b"ONE\n", b"OTHER\n")
        assert (one.wait(), other.wait()) == (0, 0)


def test_a_forked_process_ends_with_the_code_of_its_program():
    with forked.Process(forked_programs.fail, 3) as process:
        assert process.wait() == 3
        process.send_signal(signal.SIGTERM)  # It has ended, so no other process gets the signal.
        assert process.wait() == 3


def test_a_forked_process_is_killed_at_the_end_of_its_block():
    with forked.Process(forked_programs.hang) as process:
        assert process.stdout.readline() == b"here\n"
        assert process.wait(0) is None
    assert process.returncode == -signal.SIGKILL
    assert not psutil.pid_exists(process.pid)


def test_what_a_forked_process_has_started_is_killed_with_it():
    with forked.Process(forked_programs.hang_with_a_child) as process:
        child = psutil.Process(int(process.stdout.readline()))
    _, alive = psutil.wait_procs([child], timeout=60)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


def test_no_forked_process_outlives_a_test_process_that_is_killed():
    program = ENDS_WITHOUT_A_WORD.format(tests=str(TESTS), here=str(TESTS / "durability"))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as tester:
        assert tester.stdout is not None
        process = psutil.Process(int(tester.stdout.readline()))
        forker = process.parent()
        assert forker is not None
        tester.kill()
    _, alive = psutil.wait_procs([process, forker], timeout=60)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []
