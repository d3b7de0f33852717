"""Walking, searching and reading the files below one root, for the toolsets over files.

It knows files, ignore rules, patterns and budgets. It must not know tools or what a search is for. Its invariants:

1. No path leads outside of the root, even if a directory or link is swapped during a call. Without this a model could
   read any file of the user.
2. Every loop over names, bytes, lines or rules checks the call's `Budget`. Without this a huge or odd tree could keep a
   thread busy forever, since a thread cannot be cancelled.
3. No single step holds the interpreter's lock for long: patterns are bounded in size, and texts are matched in pieces.
   Without this a pattern of a model could block the event loop, although the search runs in a thread.
4. An SQLite database that some process has open is never opened here. Without this a store of this process could lose
   its locks, and its file could be damaged.
"""
