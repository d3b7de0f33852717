"""A fleet of processes that can be killed, and whose requests finish all the same; see README.md."""
