"""Record and replay: the facts of real requests in a file, and the same requests again without model and tools.

    with record("tests/recordings/weather.jsonl", runtime):
        await runtime.run("Weather in Paris?")

    await replay("tests/recordings/weather.jsonl")  # raises ReplayDifference at the first fact that is another one

A recording is a file of JSON lines: a header, for each request what was agreed for it, then its facts in the order of
its journal. docs/how-to/record-and-replay.md has the whole format.
"""

from ._difference import ReplayDifference
from ._format import FORMAT_VERSION, RecordedRequest, Recording, RecordingError, read_recording
from ._recorder import Recorder, record
from ._replay import Replayed, replay

__all__ = [
    "FORMAT_VERSION",
    "RecordedRequest",
    "Recorder",
    "Recording",
    "RecordingError",
    "ReplayDifference",
    "Replayed",
    "read_recording",
    "record",
    "replay",
]
