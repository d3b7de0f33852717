"""The pure heart: it decides everything and does nothing.

No module in here knows anyio, a clock, chance or I/O; `now` and ids are given to it. `turn` is the machine that
decides, `transcript` keeps message lists valid, `arguments` reads what models write, `limits` says when to stop.
"""
