"""A fleet of processes that can be killed, and whose requests finish nevertheless; see README.md."""
