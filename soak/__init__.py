"""Looks for bugs for as long as it is given: `python3 dev.py soak`, apart from the suite. See `soak.__main__`.

No module here imports toolbus, so that `soak.mutating` can load it anew, with one change, in each of its processes.
"""
