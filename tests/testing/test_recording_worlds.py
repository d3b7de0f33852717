"""Simulated worlds, in which everything goes wrong, are recorded and replayed: each of their requests goes as it went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from toolbus import EventBus, RequestSession
from toolbus.testing import Recorder, read_recording, replay
from toolbus.testing.simulation import run_seed


@pytest.mark.repeats("world after world")
@pytest.mark.parametrize("seed", [*range(45), 212])
def test_a_simulated_world_goes_as_it_went(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recorders: dict[int, Recorder] = {}
    make = RequestSession.__init__

    def recording(self: RequestSession, bus: EventBus, *arguments: Any, **options: Any) -> None:
        start = options.get("start")
        if start is None or (start.parent is None and start.resumed is None):  # what is resumed did not begin there
            number = len(recorders)
            if id(bus) not in recorders:
                recorders[id(bus)] = Recorder(tmp_path / f"{number}.jsonl", bus, journal=options.get("journal"))
            options["journal"] = recorders[id(bus)]
        make(self, bus, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(RequestSession, "__init__", recording)
        run_seed(seed)
    for recorder in recorders.values():
        recorder.close()
        assert recorder.problem is None
        if recorder.requests:
            replayed = anyio.run(replay, recorder.path)
            assert replayed.facts == recorder.facts == read_recording(recorder.path).facts
