"""A chat that shows what it is doing, and why it stopped; see README.md."""
