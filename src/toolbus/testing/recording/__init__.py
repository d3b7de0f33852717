"""Record and replay: the facts of real requests in a file, and the same requests again without model and tools.

    with record("tests/recordings/weather.jsonl", runtime):
        await runtime.run("Weather in Paris?")

    await replay("tests/recordings/weather.jsonl")  # raises ReplayDifference at the first fact that differs

A recording is a file of JSON lines: a header, the agreement of each request, and its facts in the order of its journal.
docs/how-to/record-and-replay.md has the whole format.

The package knows sessions, buses, events and the file format, and no provider, store or event loop. Only `_inside`
reads private parts of a session.

Invariants:

1. A recording is a journal. Only a journal receives the facts in the order in which they became facts. A listener on
   the bus also sees a person's input before the session takes it, and a replay in that order would make other facts.
2. A fact carries the position at which its step began. Without it a replay could not give the session in one step the
   inputs that it took in one step.
3. A replay's clock reads the recorded moments. With the machine's time, deadlines and timestamps would differ in each
   run.
4. A file that cannot be written ends the recording and no request. A recording must not change the run that it records.

Example:
    import tempfile
    from pathlib import Path

    from toolbus import Runtime
    from toolbus.testing import ScriptedProvider, text
    from toolbus.testing.recording import Recording, ReplayReport, read_recording, record, replay

    path = Path(tempfile.mkdtemp(), "hello.jsonl")
    async with Runtime(ScriptedProvider([text("Hello.")])) as runtime:
        with record(path, runtime) as recorder:
            await runtime.run("Hello?")
    recording: Recording = read_recording(path)
    replayed: ReplayReport = await replay(path)
    print(len(recording.requests), replayed.results[0].text)  # 1 Hello.
"""

from ._difference import ReplayDifference
from ._export import recorded_from_journal, recorded_from_session, recording_of
from ._format import FORMAT_VERSION, RecordedRequest, Recording, RecordingError, read_recording
from ._recorder import Recorder, record
from ._replay import ReplayReport, replay

__all__ = [
    "FORMAT_VERSION",
    "RecordedRequest",
    "Recorder",
    "Recording",
    "RecordingError",
    "ReplayDifference",
    "ReplayReport",
    "read_recording",
    "record",
    "recorded_from_journal",
    "recorded_from_session",
    "recording_of",
    "replay",
]
