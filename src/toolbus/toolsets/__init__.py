"""Ready-made tools. Each module is imported on its own, so that nobody pays for what is not used.

A toolset is a list of tools; or, where they need something that is open, an async context manager that keeps them in
its `registry` while it is entered. `toolbus.testing.check_tools` and `check_toolset` hold both to their contracts.
"""
