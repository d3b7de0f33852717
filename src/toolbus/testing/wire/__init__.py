"""A stub of a model server that speaks vendors' real wire formats on a real socket.

`WireServer` follows a script in neutral terms; a `Dialect` makes a vendor's bytes of it, and says what a request means.
Imports no SDK.
"""

from ._dialect import Dialect, Lack, Pairing, Stream, error_answer, fields_of, objects_of, sse
from ._script import (
    FaultKind,
    RecordedRequest,
    WireBreak,
    WireCall,
    WireFault,
    WirePage,
    WireReply,
    WireRequest,
    WireScript,
    WireStep,
    pieces_of,
)
from ._server import Answer, Ending, LoopbackServer
from ._stub import DIALECTS, WireServer, dialect_of

__all__ = [
    "DIALECTS",
    "Answer",
    "Dialect",
    "Ending",
    "FaultKind",
    "Lack",
    "LoopbackServer",
    "Pairing",
    "RecordedRequest",
    "Stream",
    "WireBreak",
    "WireCall",
    "WireFault",
    "WirePage",
    "WireReply",
    "WireRequest",
    "WireScript",
    "WireServer",
    "WireStep",
    "dialect_of",
    "error_answer",
    "fields_of",
    "objects_of",
    "pieces_of",
    "sse",
]
