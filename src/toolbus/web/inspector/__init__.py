"""The inspector: a page that shows the requests of a runtime, a store or a recording, and acts on them.

    inspector = create_inspector(runtime)
    app.mount("/inspector", inspector)

`toolbus inspect` serves the same page for a store or a recording. Everything that is shown is computed from events on
the server (`_fold`); the page computes only positions and colours. So a live request, a stored one and a recorded one
look the same.

Knows runtimes, stores, handles and recordings. Only the command line knows the inspector. Invariants:

1. The page gets text as text, and no script or style that is not part of this package runs in it. What a model or a
   tool writes would otherwise run in a page that may approve calls.
2. Requests for data carry the token, and `Host` and `Origin` are compared (`.._guard`). Every page in the same browser
   can send requests to this machine.
3. Texts are masked before they leave the process (`_shown`). Edited arguments get their real values back here, so a
   person can change one value without having seen the others.
4. Commands go through `RequestHandle`, as those of every other program do. If the inspector changed requests in a way
   of its own, the rules for decisions and answers would not hold for it.
5. Everything that is kept has a bound: requests and bytes of the log, rows, messages and events of a view, streams, and
   the share of the event loop that a stream may take. A page that somebody forgets to close must not disturb requests.

Example:
    from toolbus import Runtime
    from toolbus.stores.memory import MemoryStore
    from toolbus.testing import ScriptedProvider
    from toolbus.web.inspector import Inspector, Source, StoreSource, create_inspector

    inspector: Inspector = create_inspector(Runtime(ScriptedProvider([])))  # an ASGI application; mount it, or serve it
    source: Source = StoreSource(MemoryStore(journal=True), "shop")
    other = Inspector(source)
    print(len(other.token) > 20)  # True
"""

from __future__ import annotations

from ._app import Inspector, create_inspector
from ._sources import RecordingSource, Source, StoreSource

__all__ = ["Inspector", "RecordingSource", "Source", "StoreSource", "create_inspector"]
