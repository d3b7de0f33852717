"""The search for bugs that runs apart from the suite, for a chosen time: `python3 dev.py soak`. See `soak.__main__`.

No module here imports toolbus, so that `soak.mutating` can load it again, with one change, in each of its processes.
"""
