"""The contract suites, one package for each protocol: executors, providers, stores, and tools with toolsets.

Each package knows its own protocol, the shared parts in `_checks`, and no implementation of the protocol. Each check
has a public name and a docstring that states its promise; the how-to pages list both.

Invariants:

1. A check sees only the public protocol. If it looked at an implementation, it could not hold for another one.
2. All checks run, whatever fails before them, so that one run reports every violation.
3. No check waits without a bound. If one did, an object that never answers would hang the suite instead of failing it.
"""
