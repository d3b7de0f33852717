"""Ready-made tools: workspace files, code context, MCP servers, sub-requests, and control of a request.

Import each module by its own name: this package imports none, so that an unused toolset costs no import time.

A toolset is a list of tools. If its tools need a resource, such as a connection, it is an async context manager that
has its tools in its `registry` while it is entered. `toolbus.testing.check_tools` and `check_toolset` test these
two contracts. Toolsets know tools, results and registries. They must not know the runtime or the dispatcher that calls
them, and a toolset must not import another one. `_files` is shared by the two toolsets that read files.
"""
