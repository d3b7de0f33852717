"""A stub of a model server that speaks vendors' real wire formats on a real socket.

`WireServer` follows a script in neutral terms; a `Dialect` turns the script into a vendor's bytes, and reads requests.
The package knows HTTP, the vendors' wire formats and the public messages. It imports no SDK and no provider.

Invariants:

1. Dialects share no code with the providers. If both used the same encoder, a test could not find an error in it.
2. The server runs in threads of the standard library. So it serves clients on any event loop, and in other processes,
   and a client that blocks its event loop does not stop it.
3. A request is checked against the vendor's rules, and every broken rule is in `WireRequest.problems`. A stub that
   accepts everything would pass requests that the vendor refuses.

Example:
    from toolbus import Runtime
    from toolbus.providers.openai import OpenAIProvider
    from toolbus.testing.wire import WireReply, WireScript, WireServer

    script: WireScript = [WireReply(text="Hello.")]
    with WireServer(script, dialect="openai") as server:  # a real server on this machine
        provider = OpenAIProvider("gpt-5-mini", api_key="the-key", base_url=server.base_url)
        async with Runtime(provider) as runtime:
            print((await runtime.run("Hello?")).text)  # Hello.
"""

from ._dialect import Dialect, Lack, Pairing, Stream, error_answer, objects_of, sse
from ._script import (
    FaultKind,
    HttpRequest,
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
    "HttpRequest",
    "Lack",
    "LoopbackServer",
    "Pairing",
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
    "objects_of",
    "pieces_of",
    "sse",
]
